"""Train GPT-2 on bytes or on tokens, from scratch or from published weights, and let it write.

    python examples/train_gpt2.py                                              a tiny one, in half a minute on a CPU
    python examples/train_gpt2.py --data notes/ --steps 2000
    python examples/train_gpt2.py --model 124M --tokens train.bin --steps 20000 --accumulate 4
    python examples/train_gpt2.py --model 124M --tokens train.bin --weights model.safetensors --lr 5e-5

bfloat16 with float32 masters on a GPU, AdamW without decay on biases and norms, gradients clipped by their norm together,
a cosine schedule with warm-up. Ctrl-C saves, and a resumed run gives the bits of an uninterrupted one. Writes
`checkpoint.bin`, `curve.png` and `sample.txt`. docs/gpt2.md says what the numbers mean.
"""
from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ruda_tensor as rt
from ruda_record import RecorderError

try:
    from _gpt2_data import BadTokens, open_corpus
    from _gpt2_model import SIZES, write
    from _gpt2_report import Meter, gibibytes, memory_held, peak_rate, share
    from _gpt2_training import Training, TrainingConfig
    from _text_plot import draw_curve
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"this example needs tqdm and matplotlib ({error}): pip install 'ruda[examples]'")

CHECKED = {"steps": 0, "every": 1, "sample": 0, "temperature": 0, "top_k": 1, "stop_after": 1, "peak": 1}
LOOK = 10  # updates between two looks at the losses, which wait for the device


class Diverged(Exception):
    """The loss is no longer a number."""


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what, how, runs = (parser.add_argument_group(name) for name in ("what", "how", "the run"))
    what.add_argument("--model", choices=SIZES, default="tiny")
    what.add_argument("--data", type=Path, metavar="PATH", help="a file, or a folder of files, whose bytes are learned")
    what.add_argument("--tokens", type=Path, metavar="FILE", help="GPT-2's tokens as uint16, bare or behind llm.c's header")
    what.add_argument("--validation", type=Path, metavar="PATH", help="of the same kind; default: the last tenth")
    what.add_argument("--weights", type=Path, metavar="FILE", help="safetensors with Hugging Face's names, to start from")
    how.add_argument("--device", choices=("cpu", "cuda"), help="default: the first usable GPU, else the CPU")
    how.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: bfloat16 on a GPU, else float32")
    how.add_argument("--batch", type=int, default=16, help="windows of a micro-batch")
    how.add_argument("--length", type=int, help="tokens of a window; default: the model's context")
    how.add_argument("--accumulate", type=int, default=1, metavar="N", help="micro-batches of an update")
    how.add_argument("--lr", type=float, help="the highest learning rate; default: by the model's size")
    how.add_argument("--warmup", type=int, help="updates until the highest; default: a tenth of the horizon, at most 700")
    how.add_argument("--horizon", type=int, help="updates of the schedule, which a resumed run keeps; default: --steps")
    how.add_argument("--seed", type=int, default=0, help="seed of weights, windows and sample")
    how.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True, help="record the step on a GPU")
    how.add_argument("--peak", type=float, metavar="TFLOPS", help="the device's peak, for MFU; default: by its name")
    runs.add_argument("--steps", type=int, default=1000, help="updates at the end, those before a resume included")
    runs.add_argument("--every", type=int, default=250, metavar="N", help="updates between validations, each of which saves")
    runs.add_argument("--out", type=Path, default=Path("runs/gpt2"), help="folder of the files")
    runs.add_argument("--resume", action="store_true", help="go on from checkpoint.bin in --out")
    runs.add_argument("--stop-after", type=int, metavar="N", help="save and stop after N updates, like Ctrl-C")
    runs.add_argument("--sample", type=int, default=300, metavar="N", help="bytes or tokens to write at the end")
    runs.add_argument("--prompt", help="what it writes after; of tokens, their numbers")
    runs.add_argument("--temperature", type=float, default=0.8, help="of the sample; 0 takes the likeliest")
    runs.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest only")
    options = parser.parse_args()
    for name, low in CHECKED.items():
        value = getattr(options, name)
        if value is not None and not low <= value < math.inf:
            parser.error(f"--{name.replace('_', '-')} {value} is not allowed; give at least {low}")
    if options.resume and options.weights:
        parser.error("--resume goes on with the weights of its checkpoint: leave --weights out")
    return options


def prepared(options: argparse.Namespace) -> Training:
    """The run that the command line asks for, fresh or resumed."""
    device = {"cpu": rt.Cpu, "cuda": rt.Cuda, None: rt.default_device}[options.device]()
    size, horizon = SIZES[options.model], options.horizon or max(options.steps, 2)
    config = TrainingConfig(
        size=options.model,
        length=size.length if options.length is None else options.length,
        dtype=options.dtype or ("bfloat16" if device.launches else "float32"),
        batch=options.batch,
        accumulate=options.accumulate,
        horizon=horizon,
        warmup=options.warmup or min(700, max(1, horizon // 10)),
        lr=size.lr if options.lr is None else options.lr,
        seed=options.seed,
    )
    run = Training(config, open_corpus(options.data, options.tokens, options.validation), device, options.weights)
    if options.resume:
        run.restore(options.out / "checkpoint")
    return run


def train(run: Training, options: argparse.Namespace, meter: Meter) -> None:
    """Train until `--steps` updates are done; validate and save every `--every`, and save where Ctrl-C ends it early."""
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    start, path = run.steps, options.out / "checkpoint"
    # On a GPU, one launch replays all of a recorded step; on the CPU a graph only runs the step.
    graph = rt.StaticGraph(run.step, *run.batch())
    update = graph.replay if options.graph else graph.run_eager
    try:
        with graph, tqdm(total=options.steps, initial=start, unit="step", mininterval=0.5) as bar:
            meter.start()
            while run.steps < options.steps:
                run.unread.append(update(*run.batch()))
                bar.update()
                stop = bool(interrupts) or run.steps - start == options.stop_after
                due = run.steps % options.every == 0 or run.steps == options.steps
                if stop or due or len(run.unread) == LOOK:
                    look(run, meter, bar, graph)
                if due:
                    run.validate()
                if stop or due:
                    run.save(path)
                    meter.start()
                if stop:
                    return
    finally:
        signal.signal(signal.SIGINT, before)


def look(run: Training, meter: Meter, bar: Any, graph: Any) -> None:
    """Read the newest losses, and show where the run stands."""
    count = len(run.unread)
    run.read()
    meter.mark(count, memory_held(run.device, graph))
    recent = run.history["loss"][-count:]
    if not all(math.isfinite(x) for x in recent):
        raise Diverged(
            f"the loss is no longer a number, at most {count} updates before update {run.steps}; what was saved before is "
            "as it was. Start again with a lower --lr or a longer --warmup"
        )
    shown = {"loss": f"{sum(recent) / count:.4f}", "tokens/s": f"{meter.rate:,.0f}"}
    shown |= {"MFU": share(meter.utilization(meter.rate)), "memory": gibibytes(meter.memory)}
    if run.history["validation"]:
        shown["validation"] = f"{run.history['validation'][-1]:.4f}"
    bar.set_postfix(shown, refresh=False)


def report(run: Training, options: argparse.Namespace, meter: Meter) -> None:
    """Draw the curve, let the model write, and print the summary."""
    corpus, out, unit = run.corpus, options.out, run.corpus.kind.removesuffix("s")
    prompt = corpus.beginning if options.prompt is None else options.prompt
    ids = write(
        run.model, corpus.encode(prompt), options.sample, vocabulary=corpus.vocabulary, seed=options.seed,
        temperature=options.temperature, top_k=options.top_k,
    )  # fmt: skip
    (out / "sample.txt").write_text(corpus.decode(ids), encoding="utf-8")
    print(f"{corpus.decode(ids)}\n{'-' * 80}")
    rate = meter.mean_rate()
    print(f"run         {run.steps} updates on {run.device}, {run.model.num_params():,} parameters in {run.config.dtype}")
    if meter.updates:
        print(f"speed       {rate:,.0f} tokens/s, MFU {share(meter.utilization(rate))}, {meter.seconds:.1f} s of training")
        print(f"memory      {gibibytes(meter.memory)}, the most that was held")
    if run.history["validation"]:
        last = run.history["validation"][-1]
        print(f"validation  {last:.4f} nats per {unit}, {last / math.log(2.0):.4f} bits")
    if run.history["loss"]:
        draw_curve(run.history, out / "curve.png", unit)
    print(f"files       {out}{os.sep}: {', '.join(sorted(file.name for file in out.iterdir()))}")
    if run.steps < options.steps:
        print(f"stopped early; go on with --resume --steps {options.steps} --out {out} and the other options as they were")


def main() -> None:
    """Read the command line, train, report."""
    options = parse()
    try:
        run = prepared(options)
        if options.prompt is not None:
            run.corpus.encode(options.prompt)
        options.out.mkdir(parents=True, exist_ok=True)
    except (rt.NoUsableGpu, RecorderError, ValueError, OSError, ImportError) as error:
        sys.exit(f"train_gpt2: {error}")
    config, peak = run.config, peak_rate(run.device, run.config.dtype)
    peak = peak if options.peak is None else options.peak * 1e12
    meter = Meter(config.tokens, run.model_config.flops_per_token(config.length), peak)
    try:
        train(run, options, meter)
    except (Diverged, BadTokens, rt.CaptureError, RecorderError) as error:
        sys.exit(f"train_gpt2: {error}")
    report(run, options, meter)


if __name__ == "__main__":
    main()
