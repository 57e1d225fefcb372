"""The HTTP side of the embedded engine: the protocol of the PyTRIO SDK 0.2.9, served with Starlette and uvicorn.

`app.build_app` makes the ASGI application, `server` runs it, `checkpoints` keeps saved weights on disk and resolves
their `trio://` addresses, `protocol` holds the request models, `control` and `actor` the two planes of handlers.
"""
