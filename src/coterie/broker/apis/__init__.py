"""The Kafka APIs of this broker, one module each. Handlers are independent of API versions: they receive entities of
any version and return values with all fields of the newest version.

Each module's docstring describes the API's behaviour, and which parts are not supported and why. The module's last
value, `API`, declares the API key, the versions, the handler and the authorization; `table` collects them.
"""
