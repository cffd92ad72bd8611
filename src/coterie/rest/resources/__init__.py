"""The handlers of the endpoints, one file for each resource. A handler parses an HTTP request, sends a request to this
worker's herder, and returns the herder's response as an HTTP response.
"""
