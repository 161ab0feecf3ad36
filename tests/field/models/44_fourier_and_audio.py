"""Complex numbers and Fourier transforms: a Fourier neural operator, a vocoder with multi-resolution STFT losses and weight norm, mel features,
wav2vec2 with CTC, rotary embeddings with complex numbers, S4-like convolution by FFT."""

import math

import field_common as common
import torch
from field_common import measure, note
from torch import nn
from torch.nn import functional as F

TOL = 6.0


class Spectral(nn.Module):
    def __init__(self, c, modes):
        super().__init__()
        self.w = nn.Parameter(torch.randn(c, c, modes, modes, 2) / c)
        self.modes = modes

    def forward(self, x):
        h = torch.fft.rfft2(x)
        y = torch.zeros_like(h)
        y[..., : self.modes, : self.modes] = torch.einsum(
            "bixy,ioxy->boxy", h[..., : self.modes, : self.modes], torch.view_as_complex(self.w)
        )
        return torch.fft.irfft2(y, s=x.shape[-2:])


class Fno(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.lift, self.s, self.w, self.proj = (
            nn.Conv2d(3, c, 1),
            nn.ModuleList(Spectral(c, 6) for _ in range(3)),
            nn.ModuleList(nn.Conv2d(c, c, 1) for _ in range(3)),
            nn.Conv2d(c, 1, 1),
        )

    def forward(self, x):
        b, h, w = x.shape[0], x.shape[-2], x.shape[-1]
        gy, gx = torch.meshgrid(torch.linspace(0, 1, h), torch.linspace(0, 1, w), indexing="ij")
        x = self.lift(torch.cat([x, gx.expand(b, 1, h, w), gy.expand(b, 1, h, w)], 1))
        for s, c in zip(self.s, self.w):
            x = F.gelu(s(x) + c(x))
        return self.proj(x)


def mel_bank(n_fft, n, rate):
    f = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    m = 2595 * torch.log10(1 + torch.tensor([0.0, rate / 2]) / 700)
    p = 700 * (10 ** (torch.linspace(m[0].item(), m[1].item(), n + 2) / 2595) - 1)
    up, down = (f[:, None] - p[:-2]) / (p[1:-1] - p[:-2]), (p[2:] - f[:, None]) / (p[2:] - p[1:-1])
    return torch.minimum(up, down).clamp(min=0)


def run(compile_fn):
    out = {}

    def counted(name, step, reps=3):
        made = common.counters()
        out[name] = measure(name, step, reps=reps)
        note(
            name,
            {
                k: v - made[k]
                for k, v in common.counters().items()
                if k in ("made", "graphs", "breaks", "fallbacks")
            },
        )

    fno = compile_fn(Fno())
    opt = torch.optim.Adam(fno.parameters(), lr=1e-3)
    x = torch.randn(2, 1, 32, 32)

    def pde():
        opt.zero_grad()
        loss = (fno(x) - x.roll(1, -1)).norm() / x.norm()
        loss.backward()
        opt.step()
        return loss.detach()

    counted("fno train", pde)
    with torch.no_grad():
        out["fno, finer"] = fno(torch.randn(1, 1, 48, 48))

    common.seed(1)
    wn = nn.utils.parametrizations.weight_norm
    vocoder = nn.Sequential(
        wn(nn.Conv1d(20, 32, 7, padding=3)),
        nn.LeakyReLU(0.1),
        wn(nn.ConvTranspose1d(32, 16, 8, 4, 2)),
        nn.LeakyReLU(0.1),
        wn(nn.ConvTranspose1d(16, 8, 8, 4, 2)),
        nn.LeakyReLU(0.1),
        wn(nn.Conv1d(8, 1, 7, padding=3)),
        nn.Tanh(),
    )
    bank = mel_bank(128, 20, 8000)

    def mel(w):
        s = torch.stft(w, 128, 16, 64, torch.hann_window(64), return_complex=True).abs()
        return torch.log(torch.clamp(s[..., :-1].transpose(1, 2) @ bank, min=1e-5)).transpose(1, 2)

    def losses(a, b):
        total = 0.0
        for n, h, w in ((64, 16, 32), (128, 32, 64), (256, 64, 128)):
            win = torch.hann_window(w)
            p, q = (
                torch.stft(t, n, h, w, win, return_complex=True).abs().clamp(min=1e-6)
                for t in (a, b)
            )
            total = total + (p - q).norm() / q.norm() + F.l1_loss(p.log(), q.log())
        return total

    v, features, spec = compile_fn(vocoder), compile_fn(mel), compile_fn(losses)
    # Adam makes a step of a gradient that is zero but for roundings.
    opt2 = torch.optim.SGD(vocoder.parameters(), lr=1e-3)
    wave = torch.sin(torch.arange(1024) * 0.1)[None] * torch.linspace(
        1, 0.5, 1024
    ) + 0.3 * torch.randn(1, 1024)

    def voc():
        opt2.zero_grad()
        loss = spec(v(features(wave))[:, 0], wave)
        loss.backward()
        opt2.step()
        return loss.detach()

    counted("vocoder train", voc)
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    common.seed(2)
    w2v = compile_fn(
        Wav2Vec2ForCTC(
            Wav2Vec2Config(
                vocab_size=20,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                conv_dim=(16, 16),
                conv_stride=(5, 4),
                conv_kernel=(10, 8),
                num_conv_pos_embeddings=16,
                num_conv_pos_embedding_groups=2,
                mask_time_prob=0.0,
                layerdrop=0.0,
                feat_extract_norm="group",
                pad_token_id=0,
            )
        )
    )

    def ctc():
        common.seed(4)
        w2v.zero_grad()
        loss = w2v(torch.randn(2, 1600), labels=torch.randint(1, 20, (2, 8))).loss
        loss.backward()
        return loss.detach()

    counted("wav2vec2 ctc train", ctc)

    def rope(q, k):
        f = torch.polar(
            torch.ones(q.shape[1], q.shape[-1] // 2),
            torch.outer(
                torch.arange(q.shape[1]).float(),
                1.0 / 10000 ** (torch.arange(0, q.shape[-1], 2) / q.shape[-1]),
            ),
        )
        r = lambda t: torch.view_as_real(
            torch.view_as_complex(t.float().reshape(*t.shape[:-1], -1, 2)) * f[None, :, None]
        ).flatten(3)
        return r(q), r(k)

    f = compile_fn(rope)
    counted("complex rope", lambda: list(f(torch.randn(2, 24, 4, 16), torch.randn(2, 24, 4, 16))))
    out["complex rope, lengths"] = [
        f(torch.randn(2, n, 4, 16), torch.randn(2, n, 4, 16))[0].sum() for n in (9, 17, 33, 40)
    ]

    class S4D(nn.Module):
        def __init__(self, h=16, n=16):
            super().__init__()
            self.log_dt, self.C = (
                nn.Parameter(torch.rand(h) * -2 - 2),
                nn.Parameter(torch.randn(h, n, 2)),
            )
            self.log_A, self.A_im = (
                nn.Parameter(torch.log(0.5 * torch.ones(h, n))),
                nn.Parameter(math.pi * torch.arange(n).float().repeat(h, 1)),
            )

        def forward(self, u):
            L = u.shape[-1]
            dt, C, A = (
                self.log_dt.exp(),
                torch.view_as_complex(self.C),
                torch.complex(-self.log_A.exp(), self.A_im),
            )
            dtA = A * dt[:, None]
            K = (
                2
                * torch.einsum(
                    "hn,hnl->hl",
                    C * (torch.exp(dtA) - 1) / A,
                    torch.exp(dtA[..., None] * torch.arange(L)),
                ).real
            )
            y = torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(K, n=2 * L), n=2 * L)[
                ..., :L
            ]
            return F.gelu(y)

    common.seed(5)
    s4 = compile_fn(S4D())

    def ssm():
        s4.zero_grad()
        loss = s4(torch.randn(2, 16, 64)).square().mean()
        loss.backward()
        return [loss.detach(), s4.C.grad.clone()]

    counted("s4d train", ssm)
    return out
