"""A GRU reads packed sequences of other lengths each time and hands its hidden state on to the next chunk.

Reported: pytorch/pytorch#162375 (pack_padded_sequence under torch.compile), #181690 (heap corruption with LSTM and GRU), #149194.
Right: eager's padded outputs, hidden states, gradients and order of the batch.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

timed = True


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 6, padding_idx=0)
        self.rnn = nn.GRU(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(10, 4, batch_first=True, proj_size=3)

    def forward(self, ids, lengths, state=None):
        x = self.emb(ids)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, hidden = self.rnn(packed, state)
        out, found = pad_packed_sequence(out, batch_first=True)
        top, (h, c) = self.lstm(out)
        return top, hidden, h, c, found


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.state = None

    def forward(self, chunk):
        if self.state is None or self.state[0].shape[0] != chunk.shape[1]:
            self.state = (torch.zeros(chunk.shape[1], 4), torch.zeros(chunk.shape[1], 4))
        out = []
        for x in chunk:
            self.state = self.cell(x, self.state)
            out.append(self.state[0])
        self.state = tuple(s.detach() for s in self.state)
        return torch.stack(out)


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model, chunked = Reader(), Chunked()
    fast, stream = compile_fn(model), compile_fn(chunked)
    hidden = None
    for lengths in ([5, 3, 1], [5, 3, 1], [2, 7, 7], [1, 1, 4]):
        ids = pad_sequence([torch.randint(1, 20, (n,)) for n in lengths], batch_first=True)
        top, hidden, h, c, found = fast(ids, torch.tensor(lengths), hidden)
        model.zero_grad()
        (top.pow(2).sum() + h.sum() + c.sum() + hidden.sum()).backward()
        notes.append(
            [top.detach(), hidden.detach(), found, [p.grad.clone() for p in model.parameters()]]
        )
        hidden = hidden.detach()
    for steps, batch in ((3, 2), (3, 2), (5, 2), (2, 4)):
        out = stream(torch.randn(steps, batch, 3))
        out.sum().backward()
        notes.append(
            [out.detach(), [s.clone() for s in chunked.state], chunked.cell.weight_hh.grad.clone()]
        )
    return notes


def bench(compile_fn):
    torch.manual_seed(0)
    fast = compile_fn(nn.GRU(32, 64, batch_first=True).eval())
    x = torch.randn(4, 40, 32)

    def call():
        with torch.no_grad():
            return fast(x)

    return call
