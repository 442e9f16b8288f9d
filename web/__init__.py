"""The web process: HTTP in, intents out to the windows, outcomes back to whoever waits.

A request passes the door in one order, whatever is wrong with it: route and method, transport (headers,
query, body), bearer, schema. So what a doubly wrong request is told does not depend on the route. Contract 6.
"""
