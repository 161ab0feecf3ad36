"""What a compiled module is for the rest of a program: keys of state dicts, `torch.save` of it and of its weights, pickling, deepcopy,
loading before and after compilation, `named_modules`, hooks, moving dtypes, attributes, `isinstance`, freezing layers, replaced layers."""

import copy
import io
import pickle

import field_common as common
import torch
from torch import nn

TOL = 2.0


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, d), nn.BatchNorm1d(d), nn.ReLU())
        self.head = nn.Linear(d, 4)
        self.scale = 1.0

    def forward(self, x):
        return self.head(self.body(x)) * self.scale

    def predict(self, x):
        return self(x).argmax(-1)


def run(compile_fn):
    out = {}
    x = torch.randn(8, 16)
    model = Net()
    c = compile_fn(model)
    c(x).sum().backward()
    clean = lambda keys: [k.removeprefix("_orig_mod.") for k in keys]
    out["keys"] = clean(c.state_dict())
    common.note("keys as they are", list(c.state_dict())[:2])
    c.eval()
    with torch.no_grad():
        out["eval"] = c(x)
        d = copy.deepcopy(c)
        out["deepcopy"] = d(x)
        d.load_state_dict(
            {k: v * 1.5 if v.is_floating_point() else v for k, v in d.state_dict().items()}
        )
        out["copies are apart"] = [c(x), d(x)]
        f = io.BytesIO()
        torch.save({"model": model.state_dict()}, f)
        f.seek(0)
        fresh = compile_fn(Net().eval())
        fresh(x)
        getattr(fresh, "_orig_mod", fresh).load_state_dict(torch.load(f)["model"])
        out["loaded into compiled"] = fresh(x)
        try:
            f = io.BytesIO()
            torch.save(c, f)
            f.seek(0)
            out["torch.save of the module"] = torch.load(f, weights_only=False)(x)
        except Exception as e:
            out["torch.save of the module"] = f"raised {type(e).__name__}"
        try:
            out["pickle"] = pickle.loads(pickle.dumps(c))(x)
        except Exception as e:
            out["pickle"] = f"raised {type(e).__name__}"
        try:
            pickle.loads(pickle.dumps(compile_fn(plain_function)))
            common.note("pickled function", "works")
        except Exception as e:  # torch.compile's cannot be pickled either
            common.note("pickled function", f"raised {type(e).__name__}: {e}"[:200])
        out["method"] = c.predict(x)
        out["isinstance"] = isinstance(c, Net)
        out["attributes"] = [c.scale, c.head.out_features, hasattr(c, "nothing")]
        c.scale = 2.0
        out["attribute set"] = c(x)
        model.scale = 3.0
        out["attribute of the original set"] = c(x)
        seen = []
        h = model.head.register_forward_hook(lambda m, i, o: seen.append(o.sum().item()))
        c(x)
        h.remove()
        c(x)
        out["hook"] = len(seen)
        model.head = nn.Linear(32, 6)
        out["another head"] = c(x).shape[1]
        c.double()
        out["double"] = c(x.double()).dtype == torch.float64
        c.float()
        c.half()
        out["half"] = str(c(x.half()).dtype)
        c.float()
    out["names"] = clean(n for n, _ in c.named_modules())
    model.body.requires_grad_(False)
    c.train()
    c.zero_grad()
    c(x).sum().backward()
    out["frozen"] = sorted(n for n, p in model.named_parameters() if p.grad is not None)
    out["running"] = model.body[1].running_mean.clone()
    sd = torch.optim.Adam(c.parameters())
    out["parameters"] = len(list(c.parameters()))
    e = torch.optim.swa_utils.AveragedModel(c)
    e.update_parameters(c)
    out["averaged"] = e(x).shape[0]
    return out


def plain_function(x):
    return torch.sin(x) * 2
