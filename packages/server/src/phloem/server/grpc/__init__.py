"""The gRPC API: `phloem.proto`, what protoc made of it, and the service over the HTTP API's app.

Needs the extra `phloem-server[grpc]`. `phloem_pb2.py` and its `.pyi` are generated; in `src`:
`python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. phloem/server/grpc/phloem.proto`.
"""
