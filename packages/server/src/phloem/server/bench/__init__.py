"""A load generator for servers with the OpenAI API: workloads, client, figures.

`phloem bench serving` is its command line. It needs the extra `bench`, which brings aiohttp.
"""
