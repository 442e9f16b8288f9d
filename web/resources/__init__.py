"""One module a resource: each reads its request, asks the layers below and writes the answer."""
