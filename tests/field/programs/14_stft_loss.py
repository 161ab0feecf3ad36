"""A vocoder is trained with a multi-resolution STFT loss over padded audio of several lengths.

Reported: pytorch/pytorch#179807 (F.pad before stft crashes), #182200 (stft, fftn, rfftn backward: stride mismatch).
Right: eager's spectra, losses and gradients.
"""

import torch
import torch.nn.functional as F
from torch import nn


class STFTLoss(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self._window = torch.hann_window(20)
        for k, (_, _, width) in enumerate(sizes):
            self.register_buffer(f"window_{k}", torch.hann_window(width), persistent=False)

    def magnitude(self, x, k):
        n_fft, hop, width = self.sizes[k]
        spectrum = torch.stft(
            x, n_fft, hop, width, getattr(self, f"window_{k}"), return_complex=True
        )
        return spectrum.abs().clamp(min=1e-5), spectrum.angle()

    def forward(self, fake, real):
        total, parts = 0.0, {}
        for k in range(len(self.sizes)):
            a, phase = self.magnitude(fake, k)
            b, _ = self.magnitude(real, k)
            convergence = torch.norm(b - a, p="fro") / torch.norm(b, p="fro")
            magnitude = F.l1_loss(a.log(), b.log())
            parts[f"{self.sizes[k][0]}"] = (convergence, magnitude)
            total = total + convergence + magnitude + 1e-3 * phase.cos().mean()
        return total, parts


class PaddedSTFT(nn.Module):
    def __init__(self):
        super().__init__()
        self._window = torch.hann_window(20)

    def forward(self, x):
        x = F.pad(x, (0, 18))
        z = x.stft(
            n_fft=32,
            hop_length=10,
            win_length=20,
            return_complex=True,
            window=self._window,
            pad_mode="constant",
        )
        back = torch.istft(z, 32, 10, 20, self._window, length=x.shape[-1])
        return z, back


def volumes(x):
    return torch.fft.fftn(x).abs().sum() + torch.fft.rfftn(x, dim=(0, 1, 2)).real.pow(
        2
    ).sum(), torch.fft.ifftn(x.to(torch.complex64) * 2, dim=(1, 2, 3)).imag


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    loss = compile_fn(STFTLoss([(64, 16, 48), (32, 8, 32), (48, 13, 40)]))
    padded, cubes = compile_fn(PaddedSTFT()), compile_fn(volumes)
    for length in (200, 200, 333, 128):
        fake, real = torch.randn(2, length, requires_grad=True), torch.randn(2, length)
        total, parts = loss(fake, real)
        total.backward()
        notes.append(
            [
                total.detach(),
                {k: [v.detach() for v in pair] for k, pair in parts.items()},
                fake.grad,
            ]
        )
        x = torch.randn(2, length // 50, requires_grad=True)
        z, back = padded(x)
        (z.abs().sum() + back.pow(2).sum()).backward()
        notes.append([z.detach(), back.detach(), x.grad])
        x = torch.randn(2, 4, length // 60, 4, requires_grad=True)
        power, imag = cubes(x)
        (power + imag.sum()).backward()
        notes.append([power.detach(), imag.detach(), x.grad])
    return notes
