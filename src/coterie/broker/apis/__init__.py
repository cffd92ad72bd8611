"""The APIs that this broker answers, one module each. Versions end here: handlers get entities of any version and say
all that the newest can say.

Each module's first line tells its versions, its behaviour, and what is left out and why.
"""
