"""OpenAI's Responses API: items in, items out, with answers that are kept for a while.

A request becomes a chat's, so that everything which holds for chats holds here.
"""
