// The stages in a row; see driver.h.
#include "runtime/driver.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <sstream>

#include "codegen/choices.h"
#include "codegen/contraction/contraction.h"
#include "codegen/contraction_gpu/product_form.h"
#include "codegen/text/cpp.h"
#include "codegen/text/triton.h"
#include "ir/print.h"
#include "passes/pipeline.h"
#include "runtime/cuda/gpu_loader.h"
#include "runtime/debug_dump.h"
#include "runtime/form_store.h"
#include "runtime/gpu_tuner.h"
#include "runtime/kernel_loader.h"
#include "schedule/contraction_model.h"
#include "schedule/plan_text.h"
#include "schedule/schedule.h"
#include "schedule/share_kernels.h"

namespace ingot::runtime {
namespace {

using Clock = std::chrono::steady_clock;

/// What plans for GPUs count on: enough for the large ones, and one plan for all of them.
constexpr int kGpuProcessors = 128;

/// Adds the time since its making, or since the last call, to a report.
class StageClock {
  public:
    explicit StageClock(CompileReport& report) : report_(report) {}
    void done(const char* stage) {
        const auto now = Clock::now();
        report_.stages.emplace_back(stage, std::chrono::duration<double>(now - last_).count());
        last_ = now;
    }

  private:
    CompileReport& report_;
    Clock::time_point last_ = Clock::now();
};

/// What the choice between generated and the vendor's contractions needs to know.
class ContractionChoice {
  public:
    /// `first_calls`: the program serves calls until a better one is there.
    ContractionChoice(const codegen::TargetInfo& target, int cores, bool first_calls)
        : target_(codegen::vector_target(target)), first_calls_(first_calls) {
        target_.cores = cores;
        native_bf16_ = target.avx512bf16 || target.amx_bf16;
        multiplies_bf16_ = target_.bf16_dot && (target_.matrix_units || !target.amx_bf16);
        by_cost_ = choose_by_cost(target_);
    }

    int panel_width(const PackQuery& query) const {
        if (query.dtype == DType::BF16 && multiplies_bf16_ && mod(query.k, 2).is(0)) {
            const int width = ingot::panel_width(query.n, DType::F32, target_);
            // What is not for matrix units is the vendor's where the processor has them.
            return !target_.matrix_units || width == kMatrixColumns ? width : 0;
        }
        if (query.dtype != DType::F32 && query.dtype != DType::F64) return 0;
        return ingot::panel_width(query.n, query.dtype, target_);
    }

    bool generate(const Kernel& kernel) const {
        const auto plan = plan_contraction(kernel, target_);
        if (!plan) return false;
        if (plan->b.form == OperandForm::Panels) return true;  // only generated code reads panels
        // Split products of small batches that are not packed gain less over a few calls than their
        // kernels, the longest of all, take to compile.
        if (first_calls_ && plan->split() && !plan->windows) return false;
        const DType element = kernel.buffers.at(plan->b.buffer < 0 ? 0 : plan->b.buffer).dtype;
        // The vendor has the processor's bf16 instructions: only code that uses them too is a
        // rival.
        if (element == DType::BF16 && native_bf16_)
            return multiplies_bf16_ && plan->pairs &&
                   (plan->by_matrix_units() || !target_.matrix_units);
        return by_cost_(kernel);
    }

  private:
    VectorTarget target_;
    bool first_calls_ = false;
    bool native_bf16_ = false;      // some instruction of the processor multiplies bf16
    bool multiplies_bf16_ = false;  // and it is the best one, which generated code uses
    std::function<bool(const Kernel&)> by_cost_;
};

std::string describe(const CompileReport& report, const codegen::TargetInfo& target) {
    std::ostringstream out;
    out << "target " << target.key() << '\n' << std::fixed << std::setprecision(3);
    for (const auto& [name, seconds] : report.stages)
        out << std::setw(10) << seconds * 1e3 << " ms  " << name << '\n';
    out << report.kernels << " kernels (" << report.compiled << " compiled, " << report.from_disk
        << " from disk, " << report.from_process << " from this process), " << report.launches
        << " launches, " << report.externs << " extern calls\n";
    if (report.from_text > 0) out << report.from_text << " kernels compiled from text\n";
    for (const auto& [reason, count] : report.refused)
        out << count << " not compiled from text: " << reason << '\n';
    return out.str();
}

/// Which products on a GPU are generated with what follows them: by what measuring has found, else
/// by a model.
class ProductChoice {
  public:
    using Asked = std::function<void(const codegen::ProductForm&)>;
    explicit ProductChoice(codegen::GpuFormLookup forms, Asked asked = {})
        : forms_(std::move(forms)), asked_(std::move(asked)) {}

    bool generates(const Kernel& kernel) const {
        const auto form = codegen::product_form(kernel);
        if (form && asked_) asked_(*form);
        return form && wins(*form);
    }
    /// `odd`: one that stands alone, of an odd number of columns; else one with an epilogue.
    bool may_generate(const PackQuery& q, bool odd) const {
        if (q.dtype != DType::BF16 && q.dtype != DType::F16) return false;
        if (!q.n.is_constant() || !q.k.is_constant()) return false;
        codegen::ProductForm form;
        form.rows = q.m;
        form.columns = q.n.constant();
        form.depth = q.k.constant();
        form.dtype = q.dtype;
        return form.odd() == odd && wins(form);
    }

  private:
    bool wins(const codegen::ProductForm& form) const {
        const auto found = forms_ ? forms_(codegen::product_key(form)) : std::nullopt;
        if (found) return std::holds_alternative<codegen::ProductTile>(*found);
        return codegen::product_wins(form);
    }

    codegen::GpuFormLookup forms_;
    Asked asked_;
};

/// Passes of a program for a GPU; `products`: with generated products, or null.
PassContext gpu_passes(const ProductChoice* products) {
    PassContext context;
    if (products != nullptr) {
        context.generated_product = [=](const PackQuery& q) {
            return products->may_generate(q, false);
        };
        context.generated_odd_product = [=](const PackQuery& q) {
            return products->may_generate(q, true);
        };
    }
    // A wide product keeps more of the GPU busy than several narrow ones, whatever the rows.
    context.merge_rows = std::int64_t{1} << 40;
    context.vendor_epilogues = true;
    context.vendor_widens = true;
    return context;
}

/// The named target with this machine's caches and cores.
codegen::TargetInfo chosen_target(const std::string& name) {
    const codegen::TargetInfo here = codegen::host();
    if (name.empty()) return here;
    codegen::TargetInfo target = codegen::target_named(name);
    if (!here.can_run(target))
        throw UserError("this machine cannot run code for the target '" + name + "'");
    target.l1_bytes = here.l1_bytes;
    target.l2_bytes = here.l2_bytes;
    target.l3_bytes = here.l3_bytes;
    target.cores = here.cores;
    target.maker = here.maker;
    return target;
}

}  // namespace

double CompileReport::seconds() const {
    double sum = 0;
    for (const auto& [name, s] : stages) sum += s;
    return sum;
}

struct Compiler::Impl {
    explicit Impl(const CompilerOptions& options)
        : jit(chosen_target(options.target), {.perf_map = options.perf_map}),
          cache({options.cache ? (options.cache_directory.empty() ? default_cache_directory()
                                                                  : options.cache_directory)
                               : std::string()}),
          loader(jit, cache) {}

    Graph optimize(const Graph& graph, const PassContext& context, DebugDump& dump) const;
    Plan plan(const Graph& graph, const ContractionChoice& choice, int cores) const;
    static Plan gpu_plan(const Graph& graph, bool as_text, const ProductChoice* products);
    void dump_kernels(const Plan& plan, const DebugDump& dump, bool gpu) const;
    cuda::GpuLoader& gpu_loader(int ordinal);
    FormStore& forms(int ordinal);
    bool generates_products(const CompileOptions& options);

    codegen::Jit jit;
    DiskCache cache;
    KernelLoader loader;
    std::mutex mutex;
    // By ordinal, under mutex.
    std::map<int, std::unique_ptr<cuda::GpuLoader>> gpu_loaders;
    std::map<int, std::unique_ptr<FormStore>> form_stores;
    std::atomic<int> compilations{0};
    Background background;  // last: its tasks use all the others
};

Graph Compiler::Impl::optimize(const Graph& graph, const PassContext& context,
                               DebugDump& dump) const {
    PipelineOptions options;
    if (dump.enabled()) {
        options.verify = true;
        options.dump = [&](std::string_view pass, const std::string& text) {
            dump.level(std::string(pass) + ".ir", text);
        };
    }
    return run_passes(graph, context, options);
}

Plan Compiler::Impl::plan(const Graph& graph, const ContractionChoice& choice, int cores) const {
    const codegen::TargetInfo& target = jit.target();
    ScheduleOptions options;
    options.cores = cores;
    options.vector_bytes = static_cast<int>(target.vector_bits / 8);
    options.cache_bytes = static_cast<std::int64_t>(target.l2_bytes);
    // oneDNN's convolutions of one tap reach 0.4 to 0.7 of MKL's products; elsewhere not measured.
    options.single_taps_as_products = target.maker == codegen::Maker::Intel;
    options.matrix_units = codegen::vector_target(target).matrix_units;
    options.filters = [&](const FilterSizes& sizes) { return codegen::filters(sizes, target); };
    options.generate_contraction = [&](const Kernel& kernel) {
        return choice.generate(kernel) || codegen::filters(kernel, target);
    };
    Plan plan = schedule(graph, options);
    share_kernels(plan, [&](const Kernel& kernel) { return codegen::choices_of(kernel, target); });
    return plan;
}

Plan Compiler::Impl::gpu_plan(const Graph& graph, bool as_text, const ProductChoice* products) {
    ScheduleOptions options;
    options.gpu = true;
    if (products != nullptr) {
        options.generate_with_epilogue_only = true;
        options.generate_contraction = [=](const Kernel& k) { return products->generates(k); };
    }
    options.batch = !as_text;
    options.cores = kGpuProcessors;
    return schedule(graph, options);
}

cuda::GpuLoader& Compiler::Impl::gpu_loader(int ordinal) {
    std::lock_guard lock(mutex);
    auto& loader = gpu_loaders[ordinal];
    if (!loader) loader = std::make_unique<cuda::GpuLoader>(cuda::Gpu::get(ordinal), cache);
    return *loader;
}

FormStore& Compiler::Impl::forms(int ordinal) {
    const std::shared_ptr<const cuda::Gpu> gpu = gpu_loader(ordinal).gpu();
    std::lock_guard lock(mutex);
    auto& store = form_stores[ordinal];
    if (!store)
        store = std::make_unique<FormStore>(cache, std::string(cuda::kGpuKernelsVersion) + " sm_" +
                                                       std::to_string(gpu->capability()) + "/" +
                                                       std::to_string(gpu->processors()) + "/" +
                                                       std::to_string(gpu->shared_bytes()));
    return *store;
}

bool Compiler::Impl::generates_products(const CompileOptions& options) {
    // Text has no products.
    if (options.gpu < 0 || options.text_compiler != nullptr || !options.gpu_products) return false;
    try {
        return gpu_loader(options.gpu).gpu()->capability() == codegen::kProductCapability;
    } catch (const NotSupported&) {
        return true;  // no GPU, so that this will be looked at only
    }
}

void Compiler::Impl::dump_kernels(const Plan& plan, const DebugDump& dump, bool gpu) const {
    // For the GPUs that most is made for, and for some before them.
    std::vector<std::pair<std::string, std::unique_ptr<codegen::Jit>>> gpus;
    if (gpu)
        for (const auto& [suffix, capability] :
             {std::pair(".ptx", 90), {".sm_89.ptx", 89}, {".sm_80.ptx", 80}})
            gpus.emplace_back(suffix, std::make_unique<codegen::Jit>(cuda::gpu_target(capability)));
    for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
        const Kernel& kernel = plan.kernels[i];
        const std::string stem = "kernels/" + std::to_string(i) + "_" + kernel.name.substr(0, 80);
        dump.file(stem + ".nest", to_string(kernel));
        const auto attempt = [&](const char* suffix, const auto& text) {
            try {
                dump.file(stem + suffix, text());
            } catch (const Error& e) {
                dump.file(stem + suffix, std::string("not expressed: ") + e.what() + "\n");
            }
        };
        attempt(".cpp", [&] { return to_cpp(kernel, "kernel"); });
        attempt(".triton.py", [&] { return to_triton(kernel, "kernel").source; });
        for (const auto& [suffix, gpu_jit] : gpus)
            attempt(suffix.c_str(), [&] { return cuda::emit_ptx(*gpu_jit, kernel).ptx; });
        if (gpu) continue;
        KernelCode launches;
        attempt(".ll", [&] { return jit.optimized_ir(loader.emit(kernel, launches)); });
        attempt(".s", [&] { return jit.assembly(loader.emit(kernel, launches)); });
    }
}

Compiler::Compiler(CompilerOptions options) : impl_(std::make_unique<Impl>(options)) {}
Compiler::~Compiler() = default;

std::shared_ptr<const Program> Compiler::compile(const Graph& graph, const CompileOptions& options,
                                                 CompileReport* wanted,
                                                 const InterruptCheck& interrupted,
                                                 const CompileEvents& events) const {
    const auto stop_if_asked = [&] {
        if (interrupted && interrupted()) throw Interrupted("the compilation was interrupted");
    };
    CompileReport report;
    StageClock clock(report);
    const bool gpu = options.gpu >= 0;
    const int all_cores = static_cast<int>(impl_->jit.target().cores);
    const int cores = options.cores > 0 ? options.cores : all_cores;
    DebugDump dump(options.debug, impl_->compilations.fetch_add(1));
    if (dump.enabled()) dump.level("traced.ir", to_string(graph));

    const ContractionChoice choice(impl_->jit.target(), cores, !options.pack_matmuls);
    codegen::GpuFormLookup forms;
    if (gpu && options.max_autotune && options.text_compiler == nullptr)
        forms = [&store = impl_->forms(options.gpu)](const std::string& key) {
            return store.find(key);
        };
    const ProductChoice product_choice(forms);
    const ProductChoice* const products =
        impl_->generates_products(options) ? &product_choice : nullptr;
    PassContext context;
    if (gpu) {
        context = gpu_passes(products);
    } else {
        context.panel_width = [&](const PackQuery& query) {
            return options.pack_matmuls || query.convolution ? choice.panel_width(query) : 0;
        };
        // A merged right side is a copy like a packed one.
        if (!options.pack_matmuls) context.merge_rows = 0;
        if (options.memory_budget >= 0) context.memory_budget = options.memory_budget;
    }
    const Graph optimized = impl_->optimize(graph, context, dump);
    clock.done("passes");
    stop_if_asked();
    Plan plan = gpu ? Impl::gpu_plan(optimized, options.text_compiler != nullptr, products)
                    : impl_->plan(optimized, choice, cores);
    clock.done("schedule");
    if (dump.enabled()) {
        dump.level("plan.txt", to_string(plan, false));
        impl_->dump_kernels(plan, dump, gpu);
        clock.done("dump");
    }
    stop_if_asked();
    if (events.planned) events.planned(plan);
    report.kernels = static_cast<int>(plan.kernels.size());
    for (const Step& step : plan.steps)
        ++(std::holds_alternative<ExternStep>(step) ? report.externs : report.launches);
    std::vector<std::shared_ptr<const void>> code;
    std::vector<KernelLaunches> kernels;
    std::shared_ptr<const cuda::Gpu> device;
    if (gpu) {
        cuda::GpuLoader& loader = impl_->gpu_loader(options.gpu);
        device = loader.gpu();
        const int threads = options.threads > 0 ? options.threads : std::min(all_cores, 16);
        kernels = loader.load(plan, options.text_compiler.get(), threads,
                              {interrupted, events.waiting}, report, code, forms);
    } else {
        const int threads = options.threads > 0 ? options.threads : std::min(all_cores, 8);
        kernels = impl_->loader.load(plan, threads, interrupted, report, code);
    }
    clock.done("kernels");
    std::vector<ProgramOutput> outputs;
    for (const Output& o : optimized.outputs())
        outputs.push_back({optimized.type(o.value), o.strides, o.writes_input});
    auto program =
        std::make_shared<const Program>(std::move(plan), std::move(kernels), std::move(outputs),
                                        std::move(code), std::move(device));
    clock.done("program");
    if (dump.enabled()) dump.file("report.txt", describe(report, impl_->jit.target()));
    if (wanted != nullptr) *wanted = std::move(report);
    return program;
}

std::unique_ptr<PendingProgram> Compiler::compile_later(Graph graph, CompileOptions options) const {
    options.threads = 1;
    auto result = std::make_shared<std::shared_ptr<const Program>>();
    // The task does not hold the compiler, which waits for its tasks when it ends.
    auto task = std::make_shared<Background::Task>([this, graph = std::move(graph),
                                                    options = std::move(options),
                                                    result](const Background::StopCheck& stop) {
        std::shared_ptr<const Program> program;
        {
            std::lock_guard turn(graph.pool().turn());
            program = compile(graph, options, nullptr, stop);
        }
        program->reserve_frozen(stop);
        *result = std::move(program);
    });
    impl_->background.start(task);
    return std::make_unique<PendingProgram>(std::move(task), std::move(result));
}

std::shared_ptr<const Program> Compiler::tune(const Graph& graph, const CompileOptions& options,
                                              const ExternHost& externs, TuningReport& report,
                                              const InterruptCheck& interrupted) const {
    if (options.gpu < 0 || options.text_compiler != nullptr || externs.device() == nullptr)
        throw NotSupported("only kernels of a GPU that are compiled here are measured");
    const auto planner = [&](const codegen::GpuFormLookup& forms,
                             const ProductChoice::Asked& asked) {
        const ProductChoice choice(forms, asked);
        const ProductChoice* const products =
            impl_->generates_products(options) ? &choice : nullptr;
        DebugDump none({}, 0);
        const Graph optimized = impl_->optimize(graph, gpu_passes(products), none);
        return Impl::gpu_plan(optimized, false, products);
    };
    const bool changed =
        GpuTuner({impl_->gpu_loader(options.gpu).gpu(), impl_->forms(options.gpu), externs, planner,
                  graph.pool().turn(), options.tuning_seconds, interrupted})
            .run(report);
    const DebugDump dump(options.debug, impl_->compilations.fetch_add(1));
    if (dump.enabled()) {
        std::string text = summary(report) + "\n";
        for (const std::string& line : report.lines) text += line + "\n";
        dump.file("autotune.txt", text);
    }
    if (!changed) return nullptr;
    std::lock_guard turn(graph.pool().turn());
    return compile(graph, options, nullptr, interrupted);
}

std::unique_ptr<PendingProgram> Compiler::tune_later(Graph graph, CompileOptions options,
                                                     std::shared_ptr<const ExternHost> externs,
                                                     std::shared_ptr<TuningReport> report) const {
    options.threads = 1;
    auto result = std::make_shared<std::shared_ptr<const Program>>();
    auto task = std::make_shared<Background::Task>(
        [this, graph = std::move(graph), options = std::move(options), externs = std::move(externs),
         report = std::move(report), result](const Background::StopCheck& stop) {
            *result = tune(graph, options, *externs, *report, stop);
        });
    impl_->background.start(task);
    return std::make_unique<PendingProgram>(std::move(task), std::move(result));
}

Background& Compiler::background() const { return impl_->background; }

std::string default_cache_directory() {
    // An environment variable may be set to nothing, which means unset here.
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
    };
    if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty()) return base + "/ingot";
    if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/ingot";
    return {};
}

}  // namespace ingot::runtime
