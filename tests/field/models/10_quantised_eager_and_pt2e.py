"""torch.ao: dynamic quantisation of modules, static quantisation with FX graph mode, PT2E (torchao) with the X86 quantizer, and
quantisation-aware training with fake quantisation; what comes out is compiled."""

import field_common as common
import torch
from field_common import measure
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))


def run(compile_fn):
    import torch.ao.quantization as q

    out = {}
    torch.backends.quantized.engine = "x86"
    common.seed(0)
    mlp = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)).eval()
    dyn = q.quantize_dynamic(mlp, {nn.Linear}, dtype=torch.qint8)
    dyn = compile_fn(dyn)
    x = torch.randn(16, 128)
    with torch.no_grad():
        out["dynamic"] = measure("quantize_dynamic", lambda: dyn(x), reps=5)
    lstm = q.quantize_dynamic(
        nn.LSTM(32, 64, batch_first=True).eval(), {nn.LSTM}, dtype=torch.qint8
    )
    lstm = compile_fn(lstm)
    with torch.no_grad():
        out["lstm"] = lstm(torch.randn(2, 9, 32))[0]

    images = torch.randn(4, 3, 32, 32)
    common.seed(1)
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    p = prepare_fx(Net().eval(), q.get_default_qconfig_mapping("x86"), (images,))
    p(images)
    c = compile_fn(convert_fx(p))
    with torch.no_grad():
        out["fx"] = measure("static, fx", lambda: c(images), reps=3)

    common.seed(2)
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as xiq
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    ep = torch.export.export(Net().eval(), (images,)).module()
    quantizer = xiq.X86InductorQuantizer().set_global(
        xiq.get_default_x86_inductor_quantization_config()
    )
    p = prepare_pt2e(ep, quantizer)
    p(images)
    c = convert_pt2e(p)
    c = compile_fn(c)
    with torch.no_grad():
        out["pt2e"] = measure("pt2e", lambda: c(images), reps=3)

    common.seed(3)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    net.qconfig = q.get_default_qat_qconfig("x86")
    qat = q.prepare_qat(net.train())
    qat = compile_fn(qat)
    opt = torch.optim.SGD(qat.parameters(), lr=0.05)
    data, target = torch.randn(32, 16), torch.randint(0, 4, (32,))

    def step():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(qat(data), target)
        loss.backward()
        opt.step()
        return loss.detach()

    out["qat"] = measure("qat", step, reps=5)
    out["observers"] = {
        k: v
        for k, v in qat.state_dict().items()
        if "min_val" in k or "max_val" in k or k.endswith("scale")
    }
    return out
