"""Anthropic's Messages API: messages of content blocks, answered by blocks.

A request becomes a chat's, so that everything which holds for chats holds here.
"""

from phloem.server.http.anthropic.routes import add_messages

__all__ = ["add_messages"]
