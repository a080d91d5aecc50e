"""Continuous batching for LLM inference.

Start with `Scheduler` (what runs when), `ports` (what it asks of others) and `loop` (who carries
batches to a runner). Nothing here imports torch.
"""

from phloem.scheduler.batch import BatchRow, ScheduleBatch
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.errors import ContextLengthError, QueueFullError
from phloem.scheduler.loop import EventLoop, NormalLoop, OverlapLoop, create_loop
from phloem.scheduler.news import News, PlainTokens
from phloem.scheduler.pause import PauseMode
from phloem.scheduler.policies import SchedulePolicy, create_policy, policy_names
from phloem.scheduler.ports import (
    RELAYED,
    Logprobs,
    ModelWorkerBatch,
    PoolingMode,
    PoolingRequest,
    PromptLogprobRequest,
    PromptLogprobs,
    Runner,
    StepResult,
    StopChecker,
    StopMatcher,
    TextTokenizer,
    TokenMasks,
    TokenMatcher,
    TopLogprobs,
)
from phloem.scheduler.request import (
    FinishReason,
    Mark,
    Request,
    RequestOutput,
    Status,
    Timings,
    TokenLogprob,
)
from phloem.scheduler.sampling import SamplingBatch, SamplingParams, TokenHistory
from phloem.scheduler.scheduler import Scheduler
from phloem.scheduler.scripted import ScriptedResponses, ScriptedRowError, ScriptedRunner
from phloem.scheduler.validation import (
    MOST_URGENT,
    checked_new_tokens,
    checked_pooling,
    checked_priority,
    checked_prompt,
    checked_retention,
    checked_seconds,
)

__all__ = [
    "MOST_URGENT",
    "RELAYED",
    "BatchRow",
    "ContextLengthError",
    "EventLoop",
    "FinishReason",
    "Logprobs",
    "Mark",
    "ModelWorkerBatch",
    "News",
    "NormalLoop",
    "OverlapLoop",
    "PauseMode",
    "PlainTokens",
    "PoolingMode",
    "PoolingRequest",
    "PromptLogprobRequest",
    "PromptLogprobs",
    "QueueFullError",
    "Request",
    "RequestOutput",
    "Runner",
    "SamplingBatch",
    "SamplingParams",
    "ScheduleBatch",
    "SchedulePolicy",
    "Scheduler",
    "SchedulerConfig",
    "ScriptedResponses",
    "ScriptedRowError",
    "ScriptedRunner",
    "Status",
    "StepResult",
    "StopChecker",
    "StopMatcher",
    "TextTokenizer",
    "Timings",
    "TokenHistory",
    "TokenLogprob",
    "TokenMasks",
    "TokenMatcher",
    "TopLogprobs",
    "checked_new_tokens",
    "checked_pooling",
    "checked_priority",
    "checked_prompt",
    "checked_retention",
    "checked_seconds",
    "create_loop",
    "create_policy",
    "policy_names",
]
