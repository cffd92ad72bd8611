"""The APIs that this broker answers, one module each. Versions end here: handlers get entities of any version and say
all that the newest can say.

Each module's docstring states the API's behaviour, and what is left out and why. Its last value, `API`, declares the
key, the versions, the handler and the permission; `table` gathers them.
"""
