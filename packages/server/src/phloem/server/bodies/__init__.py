"""Bodies of requests: decoded and checked, the large ones in a process apart.

A decoder holds the interpreter's lock for its whole work, and what it makes takes nearly as long to
give up again: a hostile body took seconds, in which no stream had a token.
"""
