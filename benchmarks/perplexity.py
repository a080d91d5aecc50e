"""What rounding costs: perplexity of a fixed text for each form of the weights and of the KV cache.

Every pair of `--quantization` and `--kv` is compared with the first pair, by default both floats,
and with the first weights over the same KV cache, which tells what weights cost from what KV costs.
The blocks of a GGUF file mean the weights that `none` computes with, so that there `gguf` is
compared with its dequantized weights.
The text is this repository's own; see `phloem.model_runner.perplexity` for what is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Figures, run

TEXT = Path(__file__).parent / "data" / "perplexity.txt"
QUANTIZATIONS = ("none", "int8", "int4", "gguf")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """Perplexities; by how many percent they differ from the first, and from that of their KV."""
    from phloem.kernels import get_ops
    from phloem.mem_pool.kv import DTYPES, KVPool, KVShape
    from phloem.model_runner import load_model
    from phloem.model_runner.perplexity import likelihood
    from phloem.model_runner.sources import resolve_model
    from phloem.server.tokenizer import Tokenizer

    folder = resolve_model(options.model, float_weights=False).path
    text = Path(options.text).read_text(encoding="utf-8")
    ids = Tokenizer.from_folder(folder).encode(text)
    ids = ids[: options.tokens]
    ops = get_ops(options.kernel_backend)
    figures: Figures = {"model": options.model, "kernels": ops.name, "tokens": len(ids)}
    firsts: dict[str, float] = {}
    for quantization in options.quantization:
        model = load_model(folder, ops=ops, quantization=quantization)
        c = model.config
        for kv_dtype in options.kv:
            shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, DTYPES[kv_dtype])
            start = time.perf_counter()
            found = likelihood(model, KVPool(options.window + 1, shape), ids, options.window)
            same_kv = firsts.setdefault(kv_dtype, found.perplexity)
            change = _percent(found.perplexity, firsts[options.kv[0]])
            of_weights = _percent(found.perplexity, same_kv)
            took = time.perf_counter() - start
            name = f"{quantization}, KV {kv_dtype}"
            say(
                f"{name}: {found.perplexity:.4f}, {change:+.3f} %, beside "
                f"{options.quantization[0]} with this KV {of_weights:+.3f} % ({took:.1f} s)"
            )
            figures[f"perplexity {name}"] = found.perplexity
            figures[f"change_percent {name}"] = change
            figures[f"weights_change_percent {name}"] = of_weights
    return figures


def _percent(found: float, reference: float) -> float:
    return 100 * (found / reference - 1)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--tokens", type=int, help="take the beginning of the text only")
    parser.add_argument("--window", type=int, default=512, help="tokens that may be looked back at")
    parser.add_argument("--kernel-backend", default="auto")
    parser.add_argument(
        "--quantization", nargs="+", choices=QUANTIZATIONS, default=list(QUANTIZATIONS)
    )
    parser.add_argument("--kv", nargs="+", default=["float32", "bfloat16", "int8"])


if __name__ == "__main__":
    run(__doc__, measure, _options)
