// See gpu_loader.h.
#include "runtime/cuda/gpu_loader.h"

#include <algorithm>
#include <cctype>

#include "codegen/contraction_gpu/emit_product.h"
#include "codegen/llvm/emit_nvptx.h"
#include "codegen/text/triton.h"
#include "runtime/cuda/assembler.h"
#include "runtime/kernel_jobs.h"

namespace ingot::runtime::cuda {

const std::string_view kGpuKernelsVersion = "ingot gpu kernels 9";

namespace {

constexpr std::string_view kTextVersion = "triton text 2";
constexpr std::string_view kLaunches = "/launches", kRefusal = "/refusal";

/// A launch and the image that has its function.
struct ImageLaunch : GpuLaunch {
    std::size_t image = 0;
};

std::string launches_text(const std::vector<ImageLaunch>& launches, const KernelJob& job) {
    const LaunchText over(*job.kernel, *job.pool);
    std::string text;
    for (const ImageLaunch& l : launches) {
        const std::string fields[] = {l.symbol,
                                      over.text(l.points),
                                      std::to_string(l.points_per_block),
                                      std::to_string(l.threads),
                                      over.text(l.shared_bytes),
                                      over.text(l.scratch_bytes),
                                      l.strides ? "strides" : "whole",
                                      l.overlaps ? "overlaps" : "behind",
                                      std::to_string(l.image)};
        text += LaunchText::line(fields);
    }
    return text;
}

std::vector<ImageLaunch> parse_launches(const std::string& text, const KernelJob& job) {
    const LaunchText over(*job.kernel, *job.pool);
    std::vector<ImageLaunch> launches;
    for (const auto& f : LaunchText::parse(text, 9)) {
        ImageLaunch l;
        l.symbol = f[0];
        l.points = over.expression(f[1]);
        l.points_per_block = static_cast<unsigned>(std::stoul(f[2]));
        l.threads = static_cast<unsigned>(std::stoul(f[3]));
        l.shared_bytes = over.expression(f[4]);
        l.scratch_bytes = over.expression(f[5]);
        l.strides = f[6] == "strides";
        l.overlaps = f[7] == "overlaps";
        l.image = std::stoul(f[8]);
        launches.push_back(std::move(l));
    }
    return launches;
}

}  // namespace

codegen::TargetInfo gpu_target(int capability) {
    // Hopper's matrix units are part of its own target, whose code runs nowhere else.
    if (capability == 90) return codegen::target_named("sm_90a");
    for (int known : {90, 89, 86, 80, 75})
        if (capability >= known) return codegen::target_named("sm_" + std::to_string(known));
    return codegen::target_named("sm_70");
}

PtxKernel emit_ptx(const codegen::Jit& jit, const Kernel& kernel, std::mutex* emitting,
                   const std::optional<codegen::GpuForm>& form) {
    PtxKernel out;
    codegen::IrModule module = jit.make_module(kernel.name);
    // Profilers show it.
    std::string name = "ingot_" + kernel.name.substr(0, 60);
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    {
        std::unique_lock<std::mutex> turn;
        if (emitting != nullptr) turn = std::unique_lock(*emitting);
        if (kernel.contraction) {
            const auto* tile = form ? std::get_if<codegen::ProductTile>(&*form) : nullptr;
            const std::string symbol = name + "_0";
            out.launches = {
                tile != nullptr
                    ? codegen::emit_gpu_product(*module.module, kernel, jit.target(), symbol, *tile)
                    : codegen::emit_gpu_product(*module.module, kernel, jit.target(), symbol)};
        } else {
            const auto* nest = form ? std::get_if<codegen::NestForm>(&*form) : nullptr;
            out.launches = codegen::emit_nvptx(*module.module, kernel, jit.target(), name,
                                               nest != nullptr ? *nest : codegen::NestForm{});
        }
    }
    out.ptx = jit.assembly(std::move(module));
    return out;
}

struct GpuLoader::Job : KernelJob {
    std::shared_ptr<const LoadedGpuKernel> loaded;
    // Of a kernel that was compiled now.
    std::vector<std::vector<std::uint8_t>> images;
    std::vector<std::shared_ptr<const Module>> modules;  // by image
    std::vector<ImageLaunch> emitted;
    std::string refusal;
    std::optional<codegen::GpuForm> form;
};

// A kernel of another form is another kernel, and so is a plan's pack with one.
void GpuLoader::set_forms(std::vector<Job>& jobs, const codegen::GpuFormLookup& forms,
                          std::string& pack_key) {
    std::string all;
    for (Job& job : jobs) {
        job.form = codegen::form_of(*job.kernel, job.text, forms);
        if (!job.form || *job.form == codegen::GpuForm(codegen::NestForm{})) continue;
        const std::string form = codegen::to_string(*job.form);
        const std::string_view parts[] = {job.key, form};
        job.key = content_key(parts);
        all += job.key;
    }
    if (all.empty()) return;
    const std::string_view parts[] = {pack_key, all};
    pack_key = content_key(parts);
}

GpuLoader::GpuLoader(std::shared_ptr<const Gpu> gpu, DiskCache& cache)
    : gpu_(std::move(gpu)), jit_(gpu_target(gpu_->capability())), cache_(cache) {}

void GpuLoader::compile_one(Job& job) const {
    try {
        PtxKernel k = emit_ptx(jit_, *job.kernel, &emitting_, job.form);
        for (GpuLaunch& l : k.launches) job.emitted.push_back({std::move(l), 0});
        job.images.push_back(assemble(*gpu_, k.ptx));
        job.modules.push_back(gpu_->load(job.images.back()));
    } catch (...) {
        job.error = std::current_exception();
    }
}

// All functions of all kernels at once. Where one of a kernel is refused, the kernel is.
void GpuLoader::compile_text(std::vector<Job>& jobs, const TextCompiler& text, int threads) const {
    std::vector<TextKernel> wanted;
    std::vector<std::pair<Job*, GpuLaunch>> launches;  // by wanted kernel
    for (Job& job : jobs) {
        if (job.loaded) continue;
        try {
            if (job.kernel->contraction) throw NotSupported("products have no text");
            TritonText made = to_triton(*job.kernel, "kernel");
            for (TritonFunction& f : made.functions) {
                GpuLaunch l;
                l.points = f.points;
                l.points_per_block = static_cast<unsigned>(f.x_block);
                l.scratch_bytes = f.scratch_bytes;
                l.strides = false;
                launches.emplace_back(&job, l);
                wanted.push_back({made.source, std::move(f.name), std::move(f.arguments), f.x_block,
                                  f.r_block, f.warps});
            }
        } catch (const NotSupported& e) {
            job.refusal = e.what();
        }
    }
    if (wanted.empty()) return;
    std::vector<TextCode> made = text.compile(wanted, gpu_->capability(), threads);
    check(made.size() == wanted.size(), "a compiler of text has left kernels out");
    for (std::size_t i = 0; i < made.size(); ++i) {
        auto& [job, launch] = launches[i];
        TextCode& code = made[i];
        if (code.refusal.empty() && code.shared_bytes > gpu_->shared_bytes())
            code.refusal = "more shared memory than the GPU has";
        if (code.refusal.empty() && code.image.empty()) code.refusal = "no code";
        if (!code.refusal.empty()) {
            job->refusal = code.refusal;
            continue;
        }
        try {
            job->modules.push_back(gpu_->load(code.image));
        } catch (const Error& e) {
            job->refusal = e.what();
            continue;
        }
        launch.symbol = code.entry;
        launch.threads = code.threads;
        launch.shared_bytes = code.shared_bytes;
        job->emitted.push_back({launch, job->images.size()});
        job->images.push_back(std::move(code.image));
    }
    for (Job& job : jobs) {
        if (job.refusal.empty()) continue;
        job.images.clear();
        job.modules.clear();
        job.emitted.clear();
    }
}

void GpuLoader::take_from_disk(std::vector<Job>& jobs, const std::string& pack_key,
                               CompileReport& report) {
    const std::optional<CachedBytes> stored = cache_.load(pack_key);
    if (!stored) return;
    const auto entries = unpack(stored->bytes());
    if (!entries) return cache_.remove(pack_key);
    std::map<std::string_view, std::span<const std::uint8_t>> by_name;
    for (const PackEntry& e : *entries) by_name[e.name] = e.bytes;
    const auto text = [&](const std::string& name) -> std::optional<std::string> {
        const auto found = by_name.find(name);
        if (found == by_name.end()) return std::nullopt;
        return std::string(found->second.begin(), found->second.end());
    };
    for (Job& job : jobs) {
        const auto launches = text(job.key + std::string(kLaunches));
        if (job.loaded || !launches) continue;
        try {
            auto kernel = std::make_shared<LoadedGpuKernel>();
            for (std::size_t i = 0;; ++i) {
                const auto image = by_name.find(job.key + "/" + std::to_string(i));
                if (image == by_name.end()) break;
                kernel->modules.push_back(gpu_->load(image->second));
            }
            kernel->launches = *launches;
            kernel->refusal = text(job.key + std::string(kRefusal)).value_or("");
            job.loaded = std::move(kernel);
            ++report.from_disk;
        } catch (const Error&) {
            // What does not load is compiled again and replaces the entry.
        }
    }
}

void GpuLoader::store(const std::vector<Job>& jobs, const std::string& pack_key) {
    std::vector<std::pair<std::string, std::span<const std::uint8_t>>> named;
    const auto add_text = [&](std::string name, const std::string& text) {
        named.emplace_back(
            std::move(name),
            std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
    };
    for (const Job& job : jobs) {
        if (job.images.empty()) continue;
        for (std::size_t i = 0; i < job.images.size(); ++i)
            named.emplace_back(job.key + "/" + std::to_string(i), job.images[i]);
        add_text(job.key + std::string(kLaunches), job.loaded->launches);
        if (!job.refusal.empty()) add_text(job.key + std::string(kRefusal), job.loaded->refusal);
    }
    std::vector<PackEntry> entries;
    for (const auto& [name, bytes] : named) entries.push_back({name, bytes});
    cache_.store(pack_key, pack(entries));
}

std::vector<KernelLaunches> GpuLoader::load(const Plan& plan, const TextCompiler* text, int threads,
                                            const WhileWaiting& waiting, CompileReport& report,
                                            std::vector<std::shared_ptr<const void>>& code,
                                            const codegen::GpuFormLookup& forms) {
    std::string target = jit_.cache_key() + "/sm_" + std::to_string(gpu_->capability());
    if (text != nullptr) target += "/" + std::string(kTextVersion) + "/" + text->version();
    std::vector<Job> jobs(plan.kernels.size());
    std::string pack_key = set_keys(pointers(jobs), plan, kGpuKernelsVersion, target);
    if (forms) set_forms(jobs, forms, pack_key);
    {
        std::lock_guard lock(mutex_);
        report.from_process += take_loaded(jobs, loaded_);
    }
    if (cache_.enabled() && !missing_code(jobs).empty()) take_from_disk(jobs, pack_key, report);
    if (std::vector<KernelJob*> todo = missing_code(jobs); !todo.empty()) {
        report.compiled = static_cast<int>(todo.size());
        if (text != nullptr) {
            compile_text(jobs, *text, threads);
            std::erase_if(todo, [](KernelJob* j) { return !static_cast<Job*>(j)->images.empty(); });
        }
        compile_on_threads(std::move(todo), threads, waiting,
                           [this](KernelJob& job) { compile_one(static_cast<Job&>(job)); });
        for (Job& job : jobs)
            if (!job.loaded)
                job.loaded = std::make_shared<LoadedGpuKernel>(LoadedGpuKernel{
                    std::move(job.modules), launches_text(job.emitted, job), job.refusal});
        if (cache_.enabled()) store(jobs, pack_key);
    }
    std::vector<KernelLaunches> kernels;
    std::unique_lock lock(mutex_);
    for (Job& job : jobs) {
        KernelLaunches launches;
        for (ImageLaunch& l : parse_launches(job.loaded->launches, job)) {
            LaunchCode c;
            c.gpu_function = job.loaded->modules.at(l.image)->function(
                l.symbol, std::min(l.shared_bytes.range().hi, gpu_->shared_bytes()));
            c.gpu = std::move(l);
            launches.launches.push_back(std::move(c));
        }
        kernels.push_back(std::move(launches));
        code.push_back(job.loaded);
        loaded_[job.key] = job.loaded;
        if (text != nullptr && job.loaded->refusal.empty()) ++report.from_text;
        if (!job.loaded->refusal.empty()) ++report.refused[job.loaded->refusal];
    }
    std::erase_if(loaded_, [](const auto& entry) { return entry.second.expired(); });
    lock.unlock();
    if (text != nullptr) text->count(report.from_text, report.refused);
    return kernels;
}

}  // namespace ingot::runtime::cuda
