"""Ready-made constraints, and examples of how to write one's own: each function returns one."""

from phloem.grammar.shipped.command_line import Option, command_line
from phloem.grammar.shipped.dates import iso_date, iso_date_time
from phloem.grammar.shipped.phone_numbers import international_phone_number, us_phone_number
from phloem.grammar.shipped.sql import select_statement
from phloem.grammar.shipped.tool_calls import tagged_tool_calls, tool_call, tool_calls

__all__ = [
    "Option",
    "command_line",
    "international_phone_number",
    "iso_date",
    "iso_date_time",
    "select_statement",
    "tagged_tool_calls",
    "tool_call",
    "tool_calls",
    "us_phone_number",
]
