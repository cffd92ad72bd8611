"""The Kafka APIs of this broker, one module for each API (ApiVersions is in `table`).

A handler (`handle`) receives kio's entity of the request's version, so a field may be missing in old versions. It
returns a mapping with the fields of the newest version; fields that the request's version does not have are dropped
when the response is encoded.

Each API module's docstring describes the API's behaviour, and which parts are not supported and why. The module's last
value, `API`, declares the API key, the versions, the handler and the authorization; `table` collects these values.
"""
