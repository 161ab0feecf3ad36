// See kernel_key.h.
#include "schedule/kernel_key.h"

#include <bit>

namespace ingot::sched {

namespace {

class Writer {
  public:
    void number(std::int64_t v) { key_.append(reinterpret_cast<const char*>(&v), sizeof v); }
    void expr(Expr e) {
        number(e.is_constant() ? 0 : 1);
        number(e.is_constant() ? e.constant() : static_cast<std::int64_t>(e.node()->id));
    }
    void scalar(const Scalar& s) {
        number(static_cast<std::int64_t>(s.value.index()));
        std::complex<double> c = s.to_complex();
        number(std::bit_cast<std::int64_t>(c.real()));
        number(std::bit_cast<std::int64_t>(c.imag()));
        if (s.value.index() < 2) number(s.to_int());
    }
    void loops(const std::vector<Loop>& list) {
        number(static_cast<std::int64_t>(list.size()));
        for (const Loop& l : list) {
            expr(l.var);
            expr(l.extent);
            number(static_cast<std::int64_t>(l.kind));
        }
    }
    void inst(const Inst& i) {
        number(static_cast<std::int64_t>(i.kind) << 32 | static_cast<std::int64_t>(i.prim) << 8 |
               static_cast<std::int64_t>(i.dtype));
        number(static_cast<std::int64_t>(i.operands.size()));
        for (InstId o : i.operands) number(o);
        number(i.buffer);
        expr(i.offset);
        expr(i.extent);
        number(i.mask);
        scalar(i.constant);
        number(i.phase);
        number(i.reduction);
        number(i.component);
        number(i.imm);
    }
    void insts(const std::vector<Inst>& list) {
        number(static_cast<std::int64_t>(list.size()));
        for (const Inst& i : list) inst(i);
    }
    void phase(const Phase& p) {
        loops(p.loops);
        insts(p.insts);
        number(static_cast<std::int64_t>(p.reductions.size()));
        for (const Reduction& r : p.reductions) {
            number(static_cast<std::int64_t>(r.op) << 8 | static_cast<std::int64_t>(r.dtype));
            number(r.value);
            number(r.index);
        }
        number(static_cast<std::int64_t>(p.stores.size()));
        for (const Store& s : p.stores) {
            number(s.buffer);
            expr(s.offset);
            number(s.value);
            number(s.mask);
            number(static_cast<std::int64_t>(s.mode));
        }
    }
    void kernel(const Kernel& k) {
        number(static_cast<std::int64_t>(k.buffers.size()));
        for (const KernelBuffer& b : k.buffers) {
            number(static_cast<std::int64_t>(b.dtype) << 8 |
                   static_cast<std::int64_t>(b.scope) << 4 | (b.read ? 2 : 0) |
                   (b.written ? 1 : 0));
            expr(b.elements);
        }
        for (Expr s : k.sizes) expr(s);
        number(k.instances);
        for (const Nest& n : k.nests) {
            loops(n.loops);
            number(n.round_intermediates ? 1 : 0);
            number(static_cast<std::int64_t>(n.phases.size()));
            for (const Phase& p : n.phases) phase(p);
        }
        if (k.contraction) contraction(*k.contraction);
    }
    void contraction(const Contraction& c) {
        for (const auto* list : {&c.batch, &c.m, &c.n, &c.k}) loops(*list);
        insts(c.a_insts);
        insts(c.b_insts);
        number(c.b_panel);
        number(static_cast<std::int64_t>(c.accumulate));
        phase(c.epilogue);
        number(c.round_intermediates ? 1 : 0);
    }
    std::string take() { return std::move(key_); }

  private:
    std::string key_;
};

}  // namespace

std::string kernel_key(const Kernel& kernel) {
    Writer w;
    w.kernel(kernel);
    return w.take();
}

}  // namespace ingot::sched
