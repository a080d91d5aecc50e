"""Adapters that put the tree where an engine has a cache of its own. One module each.

Nothing is imported here: import the module that you adopt.
"""
