"""What the programs over libraries share: seeds, repeated calls, several processes, and the
operators that torchvision needs on a PyTorch without its C++ library. Which compiler a program
runs under stands in FIELD_MODE.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import socket
import tempfile
import traceback
import warnings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402


def mode():
    """ "eager" or "ingot"."""
    return os.environ.get("FIELD_MODE", "eager")


def backend():
    """The name for `torch.compile(backend=...)`, None for eager."""
    return None if mode() == "eager" else mode()


def make_compile():
    import world

    return world.compiler_of(mode())


def seed(n=0):
    torch.manual_seed(n)
    random.seed(n)
    np.random.seed(n)


def measure(label, function, reps=5):
    """The results of `function()` called 1 + reps times, in order."""
    return [function() for _ in range(1 + reps)]


def note(key, value):
    """What a program tells about itself (times, counts) and nobody compares."""


def counters():
    names = ("graphs", "breaks", "fallbacks", "guard_failures", "replays")
    if mode() == "eager":
        return dict.fromkeys(("made", *names), 0)
    import ingot

    stats = ingot.stats()
    return {"made": stats.recordings, **{name: getattr(stats, name) for name in names}}


def rss_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def grads(module):
    return {n: p.grad.detach().clone() for n, p in module.named_parameters() if p.grad is not None}


def params(module):
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def digest(tensors):
    """Sums and norms of many tensors: smaller to keep than the tensors."""
    return [(t.detach().double().sum().item(), t.detach().double().norm().item()) for t in tensors]


@contextlib.contextmanager
def workdir():
    folder = tempfile.mkdtemp(prefix="field_")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spawn(worker, world, *args):
    """What `worker(rank, world, port, *args)` returns in each of `world` processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    place = worker.__name__, worker.__code__.co_filename
    ranks = [
        context.Process(target=_call, args=(*place, r, world, port, queue, args))
        for r in range(world)
    ]
    for process in ranks:
        process.start()
    found = {}
    try:
        for _ in ranks:
            rank, ok, value = queue.get(timeout=240)
            if not ok:
                raise RuntimeError(f"rank {rank}: {value}")
            found[rank] = pickle.loads(value)
    finally:
        for process in ranks:
            process.join(10)
            if process.is_alive():
                process.kill()
    return [found[r] for r in range(world)]


def _call(name, path, rank, world, port, queue, args):
    import compare

    try:
        torch.set_num_threads(1)
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(here, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        spec = importlib.util.spec_from_file_location("case", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        value = getattr(module, name)(rank, world, *args)
        # As bytes: a tensor would be shared, with a process that has ended by then.
        queue.put((rank, True, pickle.dumps(compare.describe(value))))
    except BaseException:
        queue.put((rank, False, traceback.format_exc()[-3000:]))


_vision = None


def vision() -> None:
    """Schemas and plain forms of torchvision's C++ operators, before it is imported."""
    global _vision
    if _vision is not None:
        return
    lib = torch.library.Library("torchvision", "DEF")
    lib.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    lib.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    lib.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
    )

    def nms(boxes, scores, threshold):
        order = scores.sort(descending=True, stable=True)[1]
        b = boxes[order]
        area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        keep = []
        gone = torch.zeros(len(order), dtype=torch.bool)
        for i in range(len(order)):
            if gone[i]:
                continue
            keep.append(i)
            lt = torch.maximum(b[i, :2], b[:, :2])
            rb = torch.minimum(b[i, 2:], b[:, 2:])
            inter = (rb - lt).clamp(min=0).prod(1)
            gone |= inter / (area[i] + area - inter) > threshold
        return order[torch.tensor(keep, dtype=torch.long)]

    def roi_align(x, rois, scale, ph, pw, ratio, aligned):
        n = rois.shape[0]
        offset = 0.5 if aligned else 0.0
        index = rois[:, 0].long()
        r = rois[:, 1:] * scale - offset
        w, h = r[:, 2] - r[:, 0], r[:, 3] - r[:, 1]
        if not aligned:
            w, h = w.clamp(min=1.0), h.clamp(min=1.0)
        s = ratio if ratio > 0 else 2
        ys = (
            r[:, 1, None]
            + (torch.arange(ph * s, dtype=x.dtype) + 0.5)[None] * (h / (ph * s))[:, None]
        )
        xs = (
            r[:, 0, None]
            + (torch.arange(pw * s, dtype=x.dtype) + 0.5)[None] * (w / (pw * s))[:, None]
        )
        H, W = x.shape[-2:]
        gx = (2 * xs + 1) / W - 1
        gy = (2 * ys + 1) / H - 1
        grid = torch.stack(
            [gx[:, None, :].expand(n, ph * s, pw * s), gy[:, :, None].expand(n, ph * s, pw * s)], -1
        )
        v = torch.nn.functional.grid_sample(
            x[index], grid, padding_mode="border", align_corners=False
        )
        return torch.nn.functional.avg_pool2d(v, s) if n else v.new_zeros(0, x.shape[1], ph, pw)

    lib.impl("nms", nms, "CPU")
    lib.impl("roi_align", roi_align, "CompositeImplicitAutograd")
    _vision = lib


vision()
