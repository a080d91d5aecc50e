"""The reasoning in front of a chat's answer, where something must keep to it: a constraint, which
begins behind it, or a budget.

Owns what cannot be made sure of, which is refused: a constraint that may not bind is none.
"""

from __future__ import annotations

from phloem.server.constraints import ConstraintRequest
from phloem.server.http.chat_setup import ChatSetup
from phloem.server.http.errors import ApiError
from phloem.server.messages import Thinking


def check_can_bind(chat: ChatSetup, field: str) -> None:
    """Refuse a constraint on a model whose answer may begin anywhere.

    Raises:
        ApiError: naming the request's `field` that asks for it.
    """
    if chat.notation.has_channels:
        # A call that must be made is a constraint too, which is asked for by this field.
        field = "tool_choice" if field == "tools" else field
        raise ApiError(
            f"{field} asks for a constraint, and this model's output is messages on channels "
            "(gpt-oss), of which this server does not make sure that the answer is one: leave it "
            "out",
            param=field,
            code="unsupported_parameter",
        )


def check_budget(chat: ChatSetup, budget: int | None) -> None:
    """Refuse a bound on reasoning of which nobody can tell where it ends.

    Raises:
        ApiError: so, or it is negative.
    """
    if budget is None:
        return
    if budget < 0:
        raise ApiError(
            f"max_thinking_tokens is {budget}: give 0 or more", param="max_thinking_tokens"
        )
    if chat.notation.has_channels:
        raise _no_budget(budget, "this model (gpt-oss) may think between its calls and answers")
    if not chat.end_of_thinking:
        raise _no_budget(
            budget, "this server knows of no reasoning of its model (--reasoning-parser names it)"
        )


def thinking_of(
    chat: ChatSetup, before: str, budget: int | None, constraint: ConstraintRequest | None
) -> Thinking | None:
    """The reasoning with which the output behind a prompt that ends with `before` begins, if it
    does; or else what binds it, binds it from its beginning.

    Raises:
        ApiError: where it begins or ends is not told by one token, and something depends on that.
    """
    if chat.notation.has_channels or not chat.notation.thinks(before):
        return None
    if chat.notation.opened(before):
        begin = None
    elif chat.begin_of_thinking is None:
        if budget is not None:
            raise _no_budget(budget, "the mark that opens this model's reasoning is no token")
        return None
    else:
        begin = chat.begin_of_thinking
    if len(chat.end_of_thinking) > 1:
        if budget is not None:
            raise _no_budget(budget, "the mark that ends this model's reasoning is no token")
        if constraint is not None:
            raise ApiError(
                f"{constraint.field} asks for a constraint, which begins behind the reasoning, and "
                "the mark that ends this model's reasoning is no token: leave it out",
                param=constraint.field,
                code="unsupported_parameter",
            )
    return Thinking(list(chat.end_of_thinking), budget, begin)


def _no_budget(budget: int, why: str) -> ApiError:
    return ApiError(
        f"max_thinking_tokens is {budget}, and {why}: leave it out",
        param="max_thinking_tokens",
        code="unsupported_parameter",
    )
