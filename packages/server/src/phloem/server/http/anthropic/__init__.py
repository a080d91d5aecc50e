"""Anthropic's Messages API: messages of content blocks, answered by blocks.

A request becomes a chat's, so that everything which holds for chats holds here.
"""
