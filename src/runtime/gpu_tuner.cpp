// See gpu_tuner.h.
#include "runtime/gpu_tuner.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "ir/print.h"
#include "runtime/program.h"

namespace ingot::runtime {

using codegen::GpuForm;
using codegen::LibraryForm;
using codegen::NestForm;
using codegen::ProductForm;
using codegen::ProductTile;

namespace {

constexpr std::size_t kTiles = 6;          // of a product that are tried, the most likely ones
constexpr std::size_t kNests = 16;         // of a program that are measured at most
constexpr double kShare = 0.01;            // of the memory all nests touch: less is not worth it
constexpr std::size_t kAlignment = 256;    // of buffers
constexpr std::size_t kCold = 128u << 20;  // bytes after which a GPU's caches have forgotten
constexpr std::size_t kCopies = 8;         // of the buffers, taken by turns
constexpr int kTurns = 16, kFewTurns = 4;  // of small work and of large
constexpr std::size_t kLarge = 32u << 20;

std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of(const Buffer& b) {
    return b.bytes.is_constant() ? static_cast<std::size_t>(b.bytes.constant()) : 0;
}

std::size_t root(const Plan& plan, std::int32_t buffer) {
    const std::int32_t base = plan.buffers[static_cast<std::size_t>(buffer)].base;
    return static_cast<std::size_t>(base < 0 ? buffer : base);
}

/// The buffers that a step touches, each once; of views, what they look into.
std::set<std::size_t> buffers_of(const Plan& plan, const Step& step) {
    std::set<std::size_t> all;
    const auto add = [&](const std::vector<std::int32_t>& list) {
        for (const std::int32_t b : list) all.insert(root(plan, b));
    };
    if (const auto* kernel = std::get_if<KernelStep>(&step)) {
        add(kernel->buffers);
    } else {
        add(std::get<ExternStep>(step).inputs);
        add(std::get<ExternStep>(step).outputs);
    }
    return all;
}

// Indices read from made-up memory would lead anywhere, and what is added up by atomics takes as
// long as its indices let it.
bool measurable(const Kernel& kernel) {
    const auto plain = [](const Inst& i) { return i.kind != InstKind::Bind; };
    const auto fits = [&](const Phase& p) {
        return std::ranges::all_of(p.insts, plain) &&
               std::ranges::none_of(p.stores,
                                    [](const Store& s) { return s.mode == StoreMode::AtomicAdd; });
    };
    for (const Nest& nest : kernel.nests)
        if (!std::ranges::all_of(nest.phases, fits)) return false;
    return !kernel.contraction || fits(kernel.contraction->epilogue);
}

bool measurable(const Plan& plan, const Step& step) {
    if (const auto* kernel = std::get_if<KernelStep>(&step))
        return measurable(plan.kernels[static_cast<std::size_t>(kernel->kernel)]);
    const Prim prim = std::get<ExternStep>(step).prim;
    return prim == Prim::Matmul || prim == Prim::MatmulBias;
}

std::string line_of(const std::string& what, const FormAnswer& answer) {
    std::ostringstream line;
    line << std::fixed << std::setprecision(2) << what << ": " << codegen::to_string(answer.form)
         << ", " << answer.model << " -> " << answer.best << " us, " << answer.tried << " tried";
    for (const auto& [form, time] : answer.times)
        if (time != FormTrials::kImpossible)
            line << "; " << codegen::to_string(form) << ' ' << time;
    return line.str();
}

}  // namespace

std::string summary(const TuningReport& report) {
    std::ostringstream text;
    text << report.kernels << " kernels measured in " << report.forms << " forms, "
         << report.changed << " changed, " << std::fixed << std::setprecision(1) << report.seconds
         << " s";
    return text.str();
}

/// Measures what one choice is about: for each form an excerpt of a plan, with that form.
class GpuTuner::Trials final : public FormTrials {
  public:
    using Way = std::function<const Excerpt*(const GpuForm&)>;
    Trials(GpuTuner& tuner, std::string key, Way way)
        : tuner_(tuner), key_(std::move(key)), way_(std::move(way)) {}

    bool over() override { return tuner_.over(); }

    std::vector<double> time(std::span<const GpuForm> forms) override {
        std::vector<double> times(forms.size(), kImpossible);
        if (!make_room(forms)) return times;
        std::vector<Rival> rivals;
        const DeviceHost& device = *tuner_.parts_.externs.device();
        cuda::GpuLab& lab = *tuner_.lab_;
        device.on_stream(lab.stream(), [&] {
            for (std::size_t f = 0; f < forms.size() && !over(); ++f) try {
                    Rival rival = prepare(forms[f]);
                    rival.form = f;
                    run(rival, 0);
                    lab.wait();
                    rivals.push_back(std::move(rival));
                } catch (const std::exception&) {
                    // What does not compile, or has no memory, is no rival.
                }
            std::vector<cuda::GpuLab::Work> works;
            for (Rival& rival : rivals) works.push_back([&](int turn) { run(rival, turn); });
            const std::vector<double> measured =
                lab.time(works, stride_ > kLarge ? kFewTurns : kTurns);
            for (std::size_t r = 0; r < rivals.size(); ++r) times[rivals[r].form] = measured[r];
            // Without the stream, what they lent could not be given back to it.
            rivals.clear();
        });
        return times;
    }

  private:
    struct Rival {
        std::size_t form = 0;
        std::shared_ptr<const Instance> instance;
        std::vector<Instance::Lease> contexts;  // by copy of the memory
    };

    static void run(Rival& rival, int turn) {
        Context& context = *rival.contexts[static_cast<std::size_t>(turn) % rival.contexts.size()];
        rival.instance->run(context, SerialThreads(), nullptr, false);
    }

    // Copies of the memory that every way needs, so many that none is found in the caches if
    // possible.
    bool make_room(std::span<const GpuForm> forms) {
        if (!tuner_.lab_) tuner_.lab_ = std::make_unique<cuda::GpuLab>(tuner_.parts_.gpu);
        cuda::GpuLab& lab = *tuner_.lab_;
        std::vector<const Excerpt*> ways;
        for (const GpuForm& form : forms)
            if (const Excerpt* way = way_(form);
                way != nullptr && std::ranges::find(ways, way) == ways.end())
                ways.push_back(way);
        std::size_t bytes = kAlignment;
        for (const Excerpt* way : ways) bytes = std::max(bytes, aligned(way->bytes));
        if (bytes <= stride_) return true;
        copies_ = std::clamp<std::size_t>(kCold / bytes, 1, kCopies);
        while (copies_ > 1 && copies_ * bytes > lab.room()) --copies_;
        memory_ = lab.memory(copies_ * bytes);
        if (memory_ == nullptr) return false;
        stride_ = bytes;
        for (const Excerpt* way : ways)
            for (const Buffer& b : way->plan.buffers)
                if (b.place == BufferPlace::Arena && b.base < 0)
                    lab.fill(memory_ + b.offset.constant(), b.type.dtype, bytes_of(b));
        for (std::size_t c = 1; c < copies_; ++c) lab.copy(memory_ + c * stride_, memory_, stride_);
        return true;
    }

    Rival prepare(const GpuForm& form) const {
        const Excerpt* way = way_(form);
        if (way == nullptr) throw NotSupported("no way to do that");
        const Parts& parts = tuner_.parts_;
        const std::lock_guard turn(parts.expressions);
        const auto forms = [&](const std::string& key) -> std::optional<GpuForm> {
            return key == key_ ? form : tuner_.known(key);
        };
        CompileReport report;
        std::vector<std::shared_ptr<const void>> code;
        auto kernels = tuner_.loader_.load(way->plan, nullptr, 1, {parts.interrupted, {}}, report,
                                           code, forms);
        auto program = std::make_shared<const Program>(way->plan, std::move(kernels),
                                                       std::vector<ProgramOutput>(),
                                                       std::move(code), parts.gpu);
        Rival rival;
        rival.instance = program->instance(parts.externs);
        for (std::size_t c = 0; c < copies_; ++c) {
            rival.contexts.push_back(rival.instance->lease());
            rival.contexts.back()->lend_arena(memory_ + c * stride_);
        }
        return rival;
    }

    GpuTuner& tuner_;
    const std::string key_;
    const Way way_;
    std::byte* memory_ = nullptr;
    std::size_t stride_ = 0, copies_ = 1;
};

GpuTuner::GpuTuner(Parts parts)
    : parts_(std::move(parts)),
      end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(parts_.seconds))),
      loader_(parts_.gpu, no_cache_) {}

bool GpuTuner::over() const {
    return Clock::now() >= end_ || (parts_.interrupted && parts_.interrupted());
}

std::optional<GpuForm> GpuTuner::known(const std::string& key) const {
    return parts_.store.find(key);
}

bool GpuTuner::run(TuningReport& report) {
    const auto begin = Clock::now();
    measure_products(report);
    measure_nests(report);
    lab_.reset();
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return changed_;
}

std::vector<std::string> GpuTuner::kinds_of(const Plan& plan) const {
    std::vector<std::string> texts, kinds;
    for (const Kernel& kernel : plan.kernels) texts.push_back(to_string(kernel));
    for (const Step& step : plan.steps) {
        std::string kind;
        if (const auto* kernel = std::get_if<KernelStep>(&step)) {
            kind = texts[static_cast<std::size_t>(kernel->kernel)];
            for (const Expr size : kernel->sizes) kind += " " + to_string(size);
        } else {
            const auto& call = std::get<ExternStep>(step);
            kind = std::string(name(call.prim)) + " " + call.callee + " " +
                   std::to_string(call.index) + to_string(call.attrs);
            for (const auto* list : {&call.inputs, &call.outputs})
                for (const std::int32_t b : *list) {
                    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(b)];
                    kind += " " + to_string(buffer.type);
                    for (const Expr stride : buffer.strides) kind += " " + to_string(stride);
                }
        }
        kinds.push_back(std::move(kind));
    }
    return kinds;
}

// All that the steps touch is given to them: every buffer has a place in the arena.
GpuTuner::Excerpt GpuTuner::excerpt(const Plan& plan, const std::vector<std::size_t>& steps) const {
    Excerpt out;
    out.plan.pool = plan.pool;
    out.plan.buffers = plan.buffers;
    std::set<std::size_t> used;
    std::map<std::int32_t, std::int32_t> kernels;  // old to new
    for (const std::size_t s : steps) {
        Step step = plan.steps[s];
        used.merge(buffers_of(plan, step));
        if (auto* kernel = std::get_if<KernelStep>(&step)) {
            const auto [at, fresh] = kernels.try_emplace(
                kernel->kernel, static_cast<std::int32_t>(out.plan.kernels.size()));
            if (fresh)
                out.plan.kernels.push_back(plan.kernels[static_cast<std::size_t>(kernel->kernel)]);
            kernel->kernel = at->second;
        }
        out.plan.steps.push_back(std::move(step));
    }
    for (std::size_t b = 0; b < out.plan.buffers.size(); ++b) {
        Buffer& buffer = out.plan.buffers[b];
        if (buffer.base >= 0) continue;
        const bool is_used = used.contains(b);
        if (is_used && buffer.place == BufferPlace::Constant) continue;
        buffer.place = BufferPlace::Arena;
        buffer.index = -1;
        buffer.data = nullptr;
        buffer.offset = Expr(static_cast<std::int64_t>(is_used ? out.bytes : 0));
        if (!is_used)
            buffer.bytes = 0;
        else
            out.bytes += aligned(bytes_of(buffer));
    }
    for (Buffer& buffer : out.plan.buffers)
        if (buffer.base >= 0)
            buffer.place = out.plan.buffers[static_cast<std::size_t>(buffer.base)].place;
    out.plan.arena_bytes = Expr(static_cast<std::int64_t>(out.bytes));
    return out;
}

void GpuTuner::settle(const std::string& key, const std::string& what,
                      const std::optional<FormAnswer>& answer, const GpuForm& model,
                      TuningReport& report) {
    if (!answer) {
        report.lines.push_back(what + ": not measured");
        return;
    }
    parts_.store.put(key, answer->form);
    ++report.kernels;
    report.forms += answer->tried;
    report.lines.push_back(line_of(what, *answer));
    if (answer->form == model) return;
    ++report.changed;
    changed_ = true;
}

// ---- products ----

void GpuTuner::measure_products(TuningReport& report) {
    std::map<std::string, ProductForm> products;
    {
        const std::lock_guard turn(parts_.expressions);
        const auto asked = [&](const ProductForm& product) {
            products.try_emplace(codegen::product_key(product), product);
        };
        (void)parts_.plan([this](const std::string& key) { return known(key); }, asked);
    }
    for (const auto& [key, product] : products)
        if (!over() && product.rows.is_constant() && !known(key)) measure_product(product, report);
}

void GpuTuner::measure_product(const ProductForm& product, TuningReport& report) {
    const std::string key = codegen::product_key(product);
    const ProductTile best_tile = codegen::tile_of(product);
    Excerpt own, library;
    {
        const std::lock_guard turn(parts_.expressions);
        const auto plan_with = [&](const GpuForm& form) {
            const auto forms = [&](const std::string& k) -> std::optional<GpuForm> {
                return k == key ? form : known(k);
            };
            return parts_.plan(forms, nullptr);
        };
        const Plan with = plan_with(best_tile), without = plan_with(LibraryForm{});
        const std::vector<std::string> kinds[] = {kinds_of(with), kinds_of(without)};
        std::map<std::string, int> more;  // how many more of a kind the first plan has
        for (const std::string& kind : kinds[0]) ++more[kind];
        for (const std::string& kind : kinds[1]) --more[kind];
        // Each kind of step once stands for all of them only if they are equally many.
        std::set<int> counts;
        for (const auto& [kind, count] : more)
            if (count != 0) counts.insert(std::abs(count));
        const auto steps_of = [&](const Plan& plan, const std::vector<std::string>& list,
                                  int sign) {
            std::vector<std::size_t> steps;
            std::set<std::string> seen;
            for (std::size_t s = 0; s < list.size(); ++s)
                if (sign * more[list[s]] > 0 && seen.insert(list[s]).second) {
                    if (!measurable(plan, plan.steps[s])) return std::vector<std::size_t>();
                    steps.push_back(s);
                }
            return steps;
        };
        const auto first = steps_of(with, kinds[0], 1), second = steps_of(without, kinds[1], -1);
        if (counts.size() != 1 || first.empty() || second.empty()) return;
        own = excerpt(with, first);
        library = excerpt(without, second);
    }
    std::vector<ProductTile> tiles(codegen::kProductTiles.begin(), codegen::kProductTiles.end());
    const std::int64_t rows = product.rows.constant();
    std::ranges::stable_sort(tiles, {}, [&](const ProductTile& tile) {
        return codegen::estimated_time(product, rows, tile);
    });
    tiles.resize(std::min(tiles.size(), kTiles));
    std::vector<GpuForm> rivals(tiles.begin(), tiles.end());
    // The model's choice first.
    rivals.insert(codegen::product_wins(product) ? rivals.end() : rivals.begin(), LibraryForm{});
    Trials trials(*this, key, [&](const GpuForm& form) {
        return std::holds_alternative<LibraryForm>(form) ? &library : &own;
    });
    settle(key, key, search_product(trials, rivals), rivals.front(), report);
}

// ---- nests ----

void GpuTuner::measure_nests(TuningReport& report) {
    struct Candidate {
        std::size_t step = 0;  // the first one of its kind
        std::string key, name;
        double bytes = 0;  // that all of them touch
    };
    std::vector<Candidate> candidates;
    double all = 0;
    std::vector<Excerpt> excerpts;
    {
        const std::lock_guard turn(parts_.expressions);
        const Plan plan =
            parts_.plan([this](const std::string& key) { return known(key); }, nullptr);
        std::map<std::int32_t, std::size_t> by_kernel;
        for (std::size_t s = 0; s < plan.steps.size(); ++s) {
            const auto* step = std::get_if<KernelStep>(&plan.steps[s]);
            if (step == nullptr) continue;
            const Kernel& kernel = plan.kernels[static_cast<std::size_t>(step->kernel)];
            double bytes = 0;
            for (const std::size_t b : buffers_of(plan, plan.steps[s]))
                bytes += static_cast<double>(bytes_of(plan.buffers[b]));
            all += bytes;
            if (kernel.contraction || !measurable(kernel)) continue;
            const auto [at, fresh] = by_kernel.try_emplace(step->kernel, candidates.size());
            if (fresh) candidates.push_back({s, to_string(kernel), kernel.name, 0});
            candidates[at->second].bytes += bytes;
        }
        std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::bytes);
        candidates.resize(std::min(candidates.size(), kNests));
        std::erase_if(candidates, [&](const Candidate& c) {
            return c.bytes < kShare * all || known(c.key).has_value();
        });
        for (const Candidate& c : candidates) excerpts.push_back(excerpt(plan, {c.step}));
    }
    for (std::size_t i = 0; i < candidates.size() && !over(); ++i) {
        const Candidate& c = candidates[i];
        Trials trials(*this, c.key, [&](const GpuForm&) { return &excerpts[i]; });
        settle(c.key, c.name, search_nest(trials), NestForm{}, report);
    }
}

}  // namespace ingot::runtime
