"""SQL that only reads, as a grammar in EBNF (which the xgrammar backend takes, and so `auto`).

What makes it safe is what it leaves out: there is one statement, which begins with SELECT; no
semicolon, no comment and no backslash; no INTO, no FOR UPDATE, no common table expression that
might write; functions from a list of harmless ones; and names from the schema at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError

FUNCTIONS = ("COUNT", "SUM", "AVG", "MIN", "MAX", "LOWER", "UPPER", "LENGTH", "ROUND", "ABS")

_RULES = r"""
root ::= select (set-operator select)* (" ORDER BY " ordering (", " ordering)*)? limit?
set-operator ::= " UNION ALL " | " UNION " | " INTERSECT " | " EXCEPT "
limit ::= " LIMIT " natural (" OFFSET " natural)?
ordering ::= column (" ASC" | " DESC")?

select ::= "SELECT " "DISTINCT "? columns " FROM " source filter? grouping?
columns ::= "*" | item (", " item)*
item ::= expression (" AS " alias)?
source ::= table (join)*
join ::= (" JOIN " | " LEFT JOIN ") table " ON " column " = " column
filter ::= " WHERE " condition
grouping ::= " GROUP BY " column (", " column)* (" HAVING " condition)?

condition ::= predicate ((" AND " | " OR ") predicate)*
predicate ::= "NOT "? (comparison | membership | null-test | "(" condition ")")
comparison ::= expression (operator expression | " LIKE " string | between)
operator ::= " = " | " <> " | " < " | " <= " | " > " | " >= "
between ::= " BETWEEN " expression " AND " expression
membership ::= expression " " "NOT "? "IN (" (select | expression (", " expression)*) ")"
null-test ::= expression " IS " "NOT "? "NULL"

expression ::= term ((" + " | " - " | " * " | " / ") term)*
term ::= column | number | string | call | "NULL" | "(" expression ")"
call ::= function "(" expression ")" | "COUNT(" ("*" | "DISTINCT " column) ")"

natural ::= "0" | [1-9] [0-9]{0,8}
number ::= "-"? natural ("." [0-9]{1,9})?
string ::= "'" ([^'\\\x00-\x1F\x7F] | "''")* "'"
alias ::= "\"" [A-Za-z0-9_ ]+ "\""
"""


def select_statement(tables: Mapping[str, Sequence[str]]) -> Constraint:
    """One SELECT over some tables.

    Args:
        tables: the names of their columns by the names of tables.

    Raises:
        GrammarError: if there is no table, or a name is not letters, digits and underscores.
    """
    columns = dict.fromkeys(column for names in tables.values() for column in names)
    qualified = [f"{table}.{column}" for table, names in tables.items() for column in names]
    if not columns or not all(tables.values()):
        raise GrammarError(f"tables are {dict(tables)!r}: give at least one, each with columns")
    for name in (*tables, *columns):
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise GrammarError(f"the name {name!r} is not letters, digits and _: make a view of it")
    rules = {"table": tables, "column": [*columns, *qualified], "function": FUNCTIONS}
    return Constraint.ebnf(_RULES + "".join(_rule(*rule) for rule in rules.items()))


def _rule(name: str, words: Iterable[str]) -> str:
    return f"{name} ::= " + " | ".join(f'"{word}"' for word in words) + "\n"
