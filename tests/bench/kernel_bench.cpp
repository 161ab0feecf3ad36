// Memory-bound kernels against the machine's copy bandwidth, on all cores and without PyTorch:
//   ingot_kernel_bench [rounds] [name]
// Every kernel and a copy of as many bytes run in turns; medians. Also the time to emit and compile
// each. Not a test: timings on a shared machine mean little alone, the ratio means something.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>

#include "codegen/llvm/emit.h"
#include "codegen/llvm/jit.h"
#include "passes/pipeline.h"
#include "schedule/graphs.h"
#include "schedule/schedule.h"

namespace ingot {
namespace {

using Clock = std::chrono::steady_clock;

/// Processor time of this process: what other processes do does not count.
double processor_time() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Splits [0, work) over the cores; the calling thread takes a part.
void parallel(std::int64_t work, const std::function<void(std::int64_t, std::int64_t)>& part) {
    static const auto cores = static_cast<std::int64_t>(codegen::host().cores);
    std::vector<std::thread> others;
    for (std::int64_t t = 1; t < cores; ++t)
        others.emplace_back([&, t] { part(work * t / cores, work * (t + 1) / cores); });
    part(0, work / cores);
    for (std::thread& t : others) t.join();
}

struct Memory {
    std::unique_ptr<std::uint8_t, decltype(&std::free)> data;
    std::size_t size;
};
Memory allocate(std::size_t size) {
    Memory m{{static_cast<std::uint8_t*>(std::aligned_alloc(64, (size + 4095) / 4096 * 4096)),
              &std::free},
             size};
    std::memset(m.data.get(), 0, size);
    return m;
}

class Bench {
  public:
    Bench(const std::string& name, Graph graph) : name_(name), jit_(codegen::host()) {
        plan_ = schedule(run_passes(std::move(graph), PassContext{}),
                         {.vector_bytes = static_cast<int>(jit_.target().vector_bits / 8)});
        codegen::EmitOptions options;
        if (const char* r = std::getenv("INGOT_BENCH_REGISTERS"))
            options.max_registers = static_cast<unsigned>(std::atoi(r));
        emit_and_compile(options);  // a process's first compilation prepares tables
        double start = processor_time();
        codegen::IrModule ir = jit_.make_module(name);
        for (const Kernel& k : plan_.kernels)
            codes_.push_back(codegen::emit_kernel(*ir.module, k, jit_.target(),
                                                  "k" + std::to_string(codes_.size()), options));
        emit_ = processor_time() - start;
        start = processor_time();
        if (std::getenv("INGOT_BENCH_DUMP")) {
            for (const Kernel& k : plan_.kernels) std::puts(to_string(k).c_str());
            codegen::IrModule again = jit_.make_module(name);
            for (const Kernel& k : plan_.kernels)
                codegen::emit_kernel(*again.module, k, jit_.target(), "k");
            std::puts(jit_.assembly(std::move(again)).c_str());
        }
        code_ = jit_.load(jit_.compile(std::move(ir)));
        compile_ = processor_time() - start;
        for (const Buffer& b : plan_.buffers)
            memory_.push_back(allocate(static_cast<std::size_t>(b.bytes.constant()) + 64));
        for (std::size_t i = 0; i < plan_.input_buffers.size(); ++i) fill(plan_.input_buffers[i]);
        arena_ = allocate(static_cast<std::size_t>(plan_.arena_bytes.constant()) + 64);
        for (std::int32_t b : plan_.input_buffers) traffic_ += bytes_of(b);
        for (std::int32_t b : plan_.output_buffers) traffic_ += bytes_of(b);
        from_ = allocate(static_cast<std::size_t>(traffic_ / 2));
        to_ = allocate(static_cast<std::size_t>(traffic_ / 2));
    }

    void emit_and_compile(const codegen::EmitOptions& options) const {
        codegen::IrModule ir = jit_.make_module("first");
        for (const Kernel& k : plan_.kernels)
            codegen::emit_kernel(*ir.module, k, jit_.target(), k.name, options);
        jit_.load(jit_.compile(std::move(ir)));
    }

    void run() {
        for (const Step& s : plan_.steps) {
            const auto& step = std::get<KernelStep>(s);
            std::vector<void*> pointers;
            for (std::int32_t b : step.buffers) pointers.push_back(at(b));
            for (const Launch& l : codes_[static_cast<std::size_t>(step.kernel)].launches) {
                auto* f = code_->function<std::remove_pointer_t<KernelFn>>(l.symbol);
                parallel(l.work.constant(), [&](std::int64_t begin, std::int64_t end) {
                    Memory scratch =
                        allocate(static_cast<std::size_t>(l.scratch_bytes.constant()) + 64);
                    std::int64_t error = 0;
                    f(pointers.data(), nullptr, begin, end, scratch.data.get(), &error);
                });
            }
        }
    }
    void copy() {
        parallel(traffic_ / 2, [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(to_.data.get() + begin, from_.data.get() + begin,
                        static_cast<std::size_t>(end - begin));
        });
    }

    void report(int rounds) {
        std::vector<double> own, copies, own_cpu, copy_cpu;
        run();
        copy();
        for (int i = 0; i < rounds; ++i) {
            auto start = Clock::now();
            double cpu = processor_time();
            run();
            own.push_back(seconds_since(start));
            own_cpu.push_back(processor_time() - cpu);
            start = Clock::now();
            cpu = processor_time();
            copy();
            copies.push_back(seconds_since(start));
            copy_cpu.push_back(processor_time() - cpu);
        }
        auto median = [](std::vector<double> v) {
            std::sort(v.begin(), v.end());
            return v[v.size() / 2];
        };
        const double t = median(own), c = median(copies), gb = static_cast<double>(traffic_) / 1e9;
        std::printf(
            "%-16s %zu kernels %8.3f ms %6.1f GB/s, copy %6.1f GB/s: %4.0f %% (processor time: "
            "%8.3f ms, %4.0f %%)  emit %.2f ms, compile %.2f ms\n",
            name_.c_str(), plan_.steps.size(), t * 1e3, gb / t, gb / c, 100 * c / t,
            median(own_cpu) * 1e3, 100 * median(copy_cpu) / median(own_cpu), emit_ * 1e3,
            compile_ * 1e3);
    }

  private:
    std::int64_t bytes_of(std::int32_t b) const {
        return plan_.buffers[static_cast<std::size_t>(b)].bytes.constant();
    }
    std::uint8_t* at(std::int32_t b) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(b)];
        if (buffer.base >= 0) return at(buffer.base) + buffer.offset.constant();
        if (buffer.place == BufferPlace::Arena) return arena_.data.get() + buffer.offset.constant();
        return memory_[static_cast<std::size_t>(b)].data.get();
    }
    void fill(std::int32_t b) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(b)];
        if (buffer.type.dtype != DType::F32) return;
        auto* x = reinterpret_cast<float*>(at(b));
        for (std::int64_t i = 0; i < bytes_of(b) / 4; ++i)
            x[i] = static_cast<float>((i * 7919) % 1000) / 250 - 2;
    }

    std::string name_;
    codegen::Jit jit_;
    Plan plan_;
    std::vector<KernelCode> codes_;
    std::shared_ptr<codegen::LoadedCode> code_;
    std::vector<Memory> memory_;
    Memory arena_{{nullptr, &std::free}, 0}, from_{{nullptr, &std::free}, 0},
        to_{{nullptr, &std::free}, 0};
    std::int64_t traffic_ = 0;
    double emit_ = 0, compile_ = 0;
};

using testing::full;
using testing::input;
using testing::output;

ValueId gelu(Graph& g, ValueId x) {
    ValueId e = g.emit(Prim::Erf, {g.emit(Prim::Mul, {x, full(g, x, 0.7071067811865476)})});
    ValueId half = g.emit(Prim::Mul, {x, full(g, x, 0.5)});
    return g.emit(Prim::Mul, {half, g.emit(Prim::Add, {e, full(g, x, 1.0)})});
}

ValueId toy(Graph& g, ValueId x, int depth) {
    for (int i = 0; i < depth; ++i) {
        ValueId s = g.emit(Prim::Sin, {x}), c = g.emit(Prim::Cos, {x});
        s = g.emit(Prim::Mul, {s, s});
        c = g.emit(Prim::Mul, {g.emit(Prim::Mul, {c, c}), x});
        x = g.emit(Prim::Add, {s, c});
    }
    return x;
}

std::vector<std::pair<std::string, std::function<void(Graph&)>>> kernels() {
    return {
        {"double",
         [](Graph& g) {
             ValueId x = input(g, {8192, 4096});
             output(g, g.emit(Prim::Mul, {x, full(g, x, 2.0)}));
         }},
        {"add",
         [](Graph& g) {
             ValueId x = input(g, {8192, 4096}), y = input(g, {8192, 4096});
             output(g, g.emit(Prim::Add, {x, y}));
         }},
        {"toy_1", [](Graph& g) { output(g, toy(g, input(g, {8192, 2048}), 1)); }},
        {"toy_4", [](Graph& g) { output(g, toy(g, input(g, {8192, 2048}), 4)); }},
        {"gelu", [](Graph& g) { output(g, gelu(g, input(g, {8192, 3072}))); }},
        {"residual_gelu",
         [](Graph& g) {
             ValueId x = input(g, {8192, 3072}), y = input(g, {8192, 3072});
             output(g, g.emit(Prim::Add, {y, gelu(g, x)}));
         }},
        {"softmax_1024",
         [](Graph& g) { output(g, testing::softmax(g, input(g, {16384, 1024}), 1)); }},
        {"softmax_32000",
         [](Graph& g) { output(g, testing::softmax(g, input(g, {1024, 32000}), 1)); }},
        {"layer_norm_768",
         [](Graph& g) {
             ValueId x = input(g, {32768, 768}), w = input(g, {768}), b = input(g, {768});
             output(g, testing::layer_norm(g, x, w, b));
         }},
        {"layer_norm_4096",
         [](Graph& g) {
             ValueId x = input(g, {8192, 4096}), w = input(g, {4096}), b = input(g, {4096});
             output(g, testing::layer_norm(g, x, w, b));
         }},
        {"row_sum",
         [](Graph& g) {
             output(g, g.emit(Prim::Sum, {input(g, {8192, 4096})}, {{"dims", Ints{1}}}));
         }},
        {"column_sum",
         [](Graph& g) {
             output(g, g.emit(Prim::Sum, {input(g, {8192, 4096})}, {{"dims", Ints{0}}}));
         }},
        {"argmax",
         [](Graph& g) {
             output(g, g.emit(Prim::Argmax, {input(g, {8192, 4096})}, {{"dims", Ints{1}}}));
         }},
        {"transpose",
         [](Graph& g) {
             output(g, g.emit(Prim::Permute, {input(g, {4096, 4096})}, {{"dims", Ints{1, 0}}}));
         }},
        {"transpose_add",
         [](Graph& g) {
             ValueId x = input(g, {4096, 4096}), y = input(g, {4096, 4096});
             ValueId t = g.emit(Prim::Permute, {x}, {{"dims", Ints{1, 0}}});
             output(g, g.emit(Prim::Add, {t, y}));
         }},
        {"bf16_gelu", [](Graph& g) { output(g, gelu(g, input(g, {8192, 4096}, DType::BF16))); }},
        {"f16_add",
         [](Graph& g) {
             ValueId x = input(g, {8192, 4096}, DType::F16), y = input(g, {8192, 4096}, DType::F16);
             output(g, g.emit(Prim::Add, {x, y}));
         }},
    };
}

}  // namespace
}  // namespace ingot

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
    for (auto& [name, build] : ingot::kernels()) {
        if (argc > 2 && name != argv[2]) continue;
        ingot::Graph graph;
        build(graph);
        ingot::Bench(name, std::move(graph)).report(rounds);
    }
}
