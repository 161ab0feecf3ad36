// Kernels as text and back. The text is complete and canonical: symbols are renamed in the order of
// their declaration (sizes s0.., loops i0.., bound indices x0..), so kernels of equal structure
// have equal text, which is the key of deduplication and of the disk cache.
//
//     kernel "softmax" {
//       sizes s0 in [1, 4096]
//       buffer 0: f32[8*s0] read
//       buffer 1: f32[8*s0] written
//       nest {
//         loop i0 < 8
//         phase {
//           loop i1 < s0 vector
//           %0: f32 = load 0[i0*s0 + i1]
//           reduce max f32 %0
//         }
//         phase {
//           loop i2 < s0 vector
//           %0: f32 = load 0[i0*s0 + i2]
//           %1: f32 = reduced(0, 0, 0)
//           %2: f32 = sub(%0, %1)
//           store 1[i0*s0 + i2] = %2
//         }
//       }
//     }
//
// Cost: one pass each way; printing is a few microseconds a kernel.
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ir/text.h"
#include "schedule/nest.h"

namespace ingot {

namespace {

constexpr std::string_view kReduceOps[] = {"sum", "prod", "max",    "min",   "and",
                                           "or",  "xor",  "argmax", "argmin"};
constexpr std::string_view kStoreModes[] = {"", " atomic_add", " sum"};
constexpr std::string_view kLoopKinds[] = {"serial", "vector", "unroll", "run"};

// The range that ExprPool::index gives a variable of this extent.
Range index_range(Expr extent) {
    std::int64_t hi = extent.range().hi;
    return {0, hi == Range::kMax ? hi : std::max<std::int64_t>(hi - 1, 0)};
}

class KernelPrinter {
  public:
    explicit KernelPrinter(const Kernel& k)
        : kernel_(k), names_([this](Expr symbol) { return symbol_name(symbol); }) {}

    std::string print() {
        line(0, "kernel " + write_quoted(kernel_.name) + " {");
        if (!kernel_.sizes.empty()) sizes();
        if (kernel_.instances > 1) line(1, "instances " + std::to_string(kernel_.instances));
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) buffer(i);
        for (const Nest& n : kernel_.nests) nest(n);
        if (kernel_.contraction) contraction(*kernel_.contraction);
        line(0, "}");
        return std::move(out_);
    }

  private:
    std::string text(Expr e) const { return to_string(e, names_); }
    void line(int depth, const std::string& text) {
        out_.append(static_cast<std::size_t>(depth) * 2, ' ');
        out_ += text + "\n";
    }
    // A symbol nobody declared keeps its own name behind a '.', which no declared one has.
    std::string symbol_name(Expr symbol) const {
        auto it = declared_.find(symbol.node());
        return it != declared_.end() ? it->second : "_." + symbol.node()->symbol;
    }
    std::string declare(Expr symbol, char letter, int& count) {
        check(symbol.is_symbol(), "a kernel declares an expression that is no symbol");
        return declared_[symbol.node()] = letter + std::to_string(count++);
    }
    // What a symbol is known to be below and within, beyond what `extent` says.
    std::string facts(Expr symbol, Expr extent) const {
        const ExprNode& n = *symbol.node();
        bool usual =
            n.range == index_range(extent) && n.extent == (extent.is_constant() ? Expr(0) : extent);
        if (usual) return "";
        std::string out = n.extent.is(0) ? "" : " below " + text(n.extent);
        std::string range = write_range(n.range);
        return out + " within " + (range.empty() ? "all" : range.substr(4));
    }
    void sizes() {
        std::string out = "sizes ";
        for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
            out += (i ? ", " : "") + declare(kernel_.sizes[i], 's', size_count_) +
                   write_range(kernel_.sizes[i].node()->range);
        line(1, out);
    }
    void buffer(std::size_t i) {
        const KernelBuffer& b = kernel_.buffers[i];
        line(1, "buffer " + std::to_string(i) + ": " + std::string(name(b.dtype)) + "[" +
                    text(b.elements) + "]" + (b.scope == BufferScope::Scratch ? " scratch" : "") +
                    (b.read ? " read" : "") + (b.written ? " written" : ""));
    }
    void loop(int depth, const Loop& l, std::string_view keyword) {
        // The extent is printed before the variable is declared: it cannot contain it.
        std::string extent = text(l.extent), known = facts(l.var, l.extent);
        line(depth, std::string(keyword) + " " + declare(l.var, 'i', loop_count_) + " < " + extent +
                        (l.kind == LoopKind::Serial
                             ? ""
                             : " " + std::string(kLoopKinds[static_cast<int>(l.kind)])) +
                        known);
    }
    void nest(const Nest& n) {
        line(1, n.round_intermediates ? "nest {" : "nest no rounding {");
        for (const Loop& l : n.loops) loop(2, l, "loop");
        for (const Phase& p : n.phases) phase(2, p, "phase");
        line(1, "}");
    }
    void phase(int depth, const Phase& p, std::string_view keyword) {
        line(depth, std::string(keyword) + " {");
        for (const Loop& l : p.loops) loop(depth + 1, l, "loop");
        insts(depth + 1, p.insts);
        for (const Reduction& r : p.reductions)
            line(depth + 1, "reduce " + std::string(kReduceOps[static_cast<int>(r.op)]) + " " +
                                std::string(name(r.dtype)) + " " + value(r.value) +
                                (r.index == kNone ? "" : " index " + value(r.index)));
        for (const Store& s : p.stores)
            line(depth + 1, "store " + std::to_string(s.buffer) + "[" + text(s.offset) + "] = " +
                                value(s.value) + (s.mask == kNone ? "" : " if " + value(s.mask)) +
                                std::string(kStoreModes[static_cast<int>(s.mode)]));
        line(depth, "}");
    }
    static std::string value(InstId i) { return i == kNone ? "%none" : "%" + std::to_string(i); }
    void insts(int depth, const std::vector<Inst>& list) {
        for (std::size_t i = 0; i < list.size(); ++i)
            line(depth, "%" + std::to_string(i) + ": " + std::string(name(list[i].dtype)) + " = " +
                            inst(list[i]));
    }
    std::string inst(const Inst& i) {
        std::string imm = i.imm ? " imm " + std::to_string(i.imm) : "";
        switch (i.kind) {
            case InstKind::Prim: {
                std::string operands;
                for (InstId v : i.operands) operands += (operands.empty() ? "" : ", ") + value(v);
                return std::string(name(i.prim)) + "(" + operands + ")" + imm;
            }
            case InstKind::Load:
                return "load " + std::to_string(i.buffer) + "[" + text(i.offset) + "]" +
                       (i.mask == kNone
                            ? ""
                            : " if " + value(i.mask) + " else " + write_scalar(i.constant)) +
                       imm;
            case InstKind::Index:
                return "index [" + text(i.offset) + "]" + imm;
            case InstKind::Constant:
                return "constant " + write_scalar(i.constant) + imm;
            case InstKind::Reduced:
                return "reduced(" + std::to_string(i.phase) + ", " + std::to_string(i.reduction) +
                       ", " + std::to_string(i.component) + ")" + imm;
            case InstKind::Accumulator:
                return "accumulator" + imm;
            case InstKind::Bind: {
                check(i.operands.size() == 1, "a bind needs one operand");
                std::string extent = text(i.extent), known = facts(i.offset, i.extent);
                return "bind " + declare(i.offset, 'x', bind_count_) + " " + value(i.operands[0]) +
                       " extent [" + extent + "]" + known + imm;
            }
        }
        return {};
    }
    void contraction(const Contraction& c) {
        line(1, std::string("contraction ") + std::string(name(c.accumulate)) + " panel " +
                    std::to_string(c.b_panel) + (c.round_intermediates ? " {" : " no rounding {"));
        for (const Loop& l : c.batch) loop(2, l, "batch");
        for (const Loop& l : c.m) loop(2, l, "m");
        for (const Loop& l : c.n) loop(2, l, "n");
        for (const Loop& l : c.k) loop(2, l, "k");
        line(2, "a {");
        insts(3, c.a_insts);
        line(2, "}");
        line(2, "b {");
        insts(3, c.b_insts);
        line(2, "}");
        phase(2, c.epilogue, "epilogue");
        line(1, "}");
    }

    const Kernel& kernel_;
    SymbolNames names_;
    std::unordered_map<const ExprNode*, std::string> declared_;
    int size_count_ = 0, loop_count_ = 0, bind_count_ = 0;
    std::string out_;
};

class KernelParser {
  public:
    KernelParser(std::string_view text, ExprPool& pool) : in_(text, "kernel"), pool_(pool) {}

    Kernel parse() {
        in_.expect("kernel");
        Kernel k;
        k.name = in_.quoted();
        in_.expect("{");
        if (in_.accept("sizes")) do
                k.sizes.push_back(size());
            while (in_.accept(","));
        if (in_.accept("instances")) k.instances = static_cast<int>(in_.integer());
        while (in_.accept("buffer")) k.buffers.push_back(buffer(k.buffers.size()));
        while (in_.accept("nest")) k.nests.push_back(nest());
        if (in_.accept("contraction"))
            k.contraction = std::make_shared<const Contraction>(contraction());
        in_.expect("}");
        if (!in_.at_end()) in_.fail("unexpected text behind the kernel");
        return k;
    }

  private:
    Expr expression() {
        return in_.expression([this](std::string_view name) { return lookup(name); },
                              {"vector", "unroll", "run", "below", "within"});
    }
    Expr lookup(std::string_view name) {
        if (auto it = symbols_.find(std::string(name)); it != symbols_.end()) return it->second;
        if (name.starts_with("_.")) return pool_.symbol(name.substr(2));
        throw UserError("'" + std::string(name) + "' is not declared");
    }
    // A symbol of the pool with exactly these facts; another name where this one is taken.
    Expr declare(const std::string& name, Range range, Expr extent) {
        std::string candidate = name;
        for (int i = 1;; ++i) {
            auto found = pool_.find(candidate);
            if (!found) break;
            if (found->node()->range == range && found->node()->extent == extent &&
                !used_.contains(found->node()))
                break;
            candidate = name + "_" + std::to_string(i);
        }
        Expr symbol = pool_.find(candidate).value_or(Expr(0));
        if (!symbol.is_symbol())
            symbol = extent.is(0) ? pool_.symbol(candidate, range)
                                  : pool_.index(candidate, extent, range);
        used_.insert(symbol.node());
        return symbols_[name] = symbol;
    }
    // The facts behind a loop or a bind of extent `extent`.
    Expr declare_below(const std::string& name, Expr extent) {
        Range range = index_range(extent);
        Expr bound = extent.is_constant() ? Expr(0) : extent;
        bool below = in_.accept("below");
        if (below) bound = expression();
        if (in_.accept("within")) {
            if (!below) bound = 0;
            range = in_.accept("all") ? Range{} : in_.range();
        }
        return declare(name, range, bound);
    }
    Expr size() {
        std::string name(in_.identifier());
        return declare(name, in_.range_or_unbounded(), 0);
    }
    KernelBuffer buffer(std::size_t number) {
        if (in_.integer() != static_cast<std::int64_t>(number)) in_.fail("buffers out of order");
        in_.expect(":");
        KernelBuffer b;
        b.dtype = in_.dtype();
        in_.expect("[");
        b.elements = expression();
        in_.expect("]");
        if (in_.accept("scratch")) b.scope = BufferScope::Scratch;
        b.read = in_.accept("read");
        b.written = in_.accept("written");
        return b;
    }
    Loop loop() {
        Loop l;
        std::string name(in_.identifier());
        in_.expect("<");
        l.extent = expression();
        if (in_.accept("vector")) l.kind = LoopKind::Vector;
        if (in_.accept("unroll")) l.kind = LoopKind::Unroll;
        if (in_.accept("run")) l.kind = LoopKind::Run;
        l.var = declare_below(name, l.extent);
        return l;
    }
    bool no_rounding() {
        if (!in_.accept("no")) return false;
        in_.expect("rounding");
        return true;
    }
    Nest nest() {
        Nest n;
        n.round_intermediates = !no_rounding();
        in_.expect("{");
        while (in_.accept("loop")) n.loops.push_back(loop());
        while (in_.accept("phase")) n.phases.push_back(phase());
        in_.expect("}");
        return n;
    }
    Phase phase() {
        Phase p;
        in_.expect("{");
        while (in_.accept("loop")) p.loops.push_back(loop());
        p.insts = insts();
        while (in_.accept("reduce")) p.reductions.push_back(reduction());
        while (in_.accept("store")) p.stores.push_back(store());
        in_.expect("}");
        return p;
    }
    InstId value() {
        in_.expect("%");
        if (in_.accept("none")) return kNone;
        return static_cast<InstId>(in_.integer());
    }
    std::int32_t number() { return static_cast<std::int32_t>(in_.integer()); }
    Reduction reduction() {
        Reduction r;
        r.op = static_cast<ReduceOp>(word(kReduceOps, "reduction"));
        r.dtype = in_.dtype();
        r.value = value();
        if (in_.accept("index")) r.index = value();
        return r;
    }
    template <std::size_t N>
    std::size_t word(const std::string_view (&words)[N], const char* what) {
        std::string_view text = in_.identifier();
        for (std::size_t i = 0; i < N; ++i)
            if (words[i] == text) return i;
        in_.fail(std::string("unknown ") + what);
    }
    Store store() {
        Store s;
        s.buffer = number();
        s.offset = bracketed();
        in_.expect("=");
        s.value = value();
        if (in_.accept("if")) s.mask = value();
        if (in_.accept("atomic_add")) s.mode = StoreMode::AtomicAdd;
        if (in_.accept("sum")) s.mode = StoreMode::Sum;
        return s;
    }
    Expr bracketed() {
        in_.expect("[");
        Expr e = expression();
        in_.expect("]");
        return e;
    }
    std::vector<Inst> insts() {
        std::vector<Inst> list;
        while (in_.next_is("%")) {
            if (value() != list.size()) in_.fail("values out of order");
            in_.expect(":");
            DType t = in_.dtype();
            in_.expect("=");
            list.push_back(inst());
            list.back().dtype = t;
            if (in_.accept("imm")) list.back().imm = in_.integer();
        }
        return list;
    }
    Inst inst() {
        Inst i;
        in_.skip();
        std::size_t at = in_.position();
        std::string_view what = in_.identifier();
        if (what == "load") {
            i.kind = InstKind::Load;
            i.buffer = number();
            i.offset = bracketed();
            if (in_.accept("if")) {
                i.mask = value();
                in_.expect("else");
                i.constant = in_.scalar();
            }
        } else if (what == "index") {
            i.kind = InstKind::Index;
            i.offset = bracketed();
        } else if (what == "constant") {
            i.kind = InstKind::Constant;
            i.constant = in_.scalar();
        } else if (what == "reduced") {
            i.kind = InstKind::Reduced;
            in_.expect("(");
            i.phase = number();
            in_.expect(",");
            i.reduction = number();
            in_.expect(",");
            i.component = number();
            in_.expect(")");
        } else if (what == "accumulator") {
            i.kind = InstKind::Accumulator;
        } else if (what == "bind") {
            i.kind = InstKind::Bind;
            std::string name(in_.identifier());
            i.operands = {value()};
            in_.expect("extent");
            i.extent = bracketed();
            i.offset = declare_below(name, i.extent);
        } else {
            auto prim = parse_prim(what);
            if (!prim) in_.fail_at(at, "unknown instruction");
            i.prim = *prim;
            in_.list("(", ")", [&] { i.operands.push_back(value()); });
        }
        return i;
    }
    Contraction contraction() {
        Contraction c;
        c.accumulate = in_.dtype();
        in_.expect("panel");
        c.b_panel = number();
        c.round_intermediates = !no_rounding();
        in_.expect("{");
        while (in_.accept("batch")) c.batch.push_back(loop());
        while (in_.accept("m")) c.m.push_back(loop());
        while (in_.accept("n")) c.n.push_back(loop());
        while (in_.accept("k")) c.k.push_back(loop());
        in_.expect("a");
        in_.expect("{");
        c.a_insts = insts();
        in_.expect("}");
        in_.expect("b");
        in_.expect("{");
        c.b_insts = insts();
        in_.expect("}");
        in_.expect("epilogue");
        c.epilogue = phase();
        in_.expect("}");
        return c;
    }

    Scanner in_;
    ExprPool& pool_;
    std::map<std::string, Expr> symbols_;
    std::unordered_set<const ExprNode*> used_;
};

}  // namespace

std::string to_string(const Kernel& kernel) { return KernelPrinter(kernel).print(); }

Kernel parse_kernel(std::string_view text, ExprPool& pool) {
    return KernelParser(text, pool).parse();
}

}  // namespace ingot
