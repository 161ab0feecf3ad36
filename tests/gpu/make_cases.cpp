// Writes kernels with inputs and expected results for a machine with a GPU: PTX, Triton text and
// raw bytes in a folder, listed in cases.json. run_cases.py carries them out there; neither LLVM
// nor Ingot is needed on that machine.
//   ingot_gpu_cases FOLDER [random graphs]
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "codegen/contraction_gpu/emit_product.h"
#include "codegen/llvm/emit_nvptx.h"
#include "codegen/llvm/jit.h"
#include "codegen/text/triton.h"
#include "fuzz/random_graph.h"
#include "ir/parse.h"
#include "ir/reference.h"
#include "passes/pipeline.h"
#include "schedule/schedule.h"

using namespace ingot;

namespace {

std::int64_t no_symbols(Expr) { throw InternalError("a graph with symbols"); }
std::int64_t number(Expr e) { return evaluate(e, no_symbols); }

std::string json(const Sizes& list) {
    std::string out = "[";
    for (const Expr& e : list) out += (out.size() > 1 ? ", " : "") + std::to_string(number(e));
    return out + "]";
}

class CaseWriter {
  public:
    explicit CaseWriter(std::filesystem::path folder)
        : folder_(std::move(folder)), jit_(codegen::target_named("sm_90a")) {
        std::filesystem::create_directories(folder_);
    }

    // False when the graph needs a step that is no kernel.
    bool write(const std::string& name, const Graph& graph, const std::vector<Tensor>& inputs,
               const std::vector<double>& tolerance, const codegen::ProductTile* tile = nullptr,
               const codegen::NestForm& form = {}) {
        Graph copy = graph;
        ScheduleOptions options;
        options.gpu = true;
        tile_ = tile;
        form_ = form;
        if (tile != nullptr)
            options.generate_contraction = [](const Kernel& k) {
                return codegen::product_form(k).has_value();
            };
        Plan plan = schedule(run_passes(std::move(copy), PassContext{}), options);
        std::ostringstream text;
        text << "{\"name\": \"" << name << "\", \"arena\": " << number(plan.arena_bytes)
             << ", \"buffers\": [";
        for (std::size_t b = 0; b < plan.buffers.size(); ++b)
            text << (b ? ", " : "") << buffer(plan, b, name);
        text << "], \"steps\": [";
        std::vector<Step> steps = plan.frozen_steps;
        steps.insert(steps.end(), plan.steps.begin(), plan.steps.end());
        for (std::size_t s = 0; s < steps.size(); ++s) {
            auto* step = std::get_if<KernelStep>(&steps[s]);
            if (!step) return false;
            text << (s ? ", " : "")
                 << kernel(plan.kernels[static_cast<std::size_t>(step->kernel)], *step,
                           name + "_" + std::to_string(s));
        }
        std::vector<Tensor> expected = evaluate(graph, inputs, no_symbols);
        text << "], \"inputs\": [";
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (i) text << ", ";
            text << "{\"buffer\": " << plan.input_buffers[i] << ", \"file\": \""
                 << bytes_file(inputs[i].data) << "\"}";
        }
        text << "], \"outputs\": [";
        for (std::size_t o = 0; o < expected.size(); ++o) {
            if (o) text << ", ";
            text << "{\"buffer\": " << plan.output_buffers[o] << ", \"tolerance\": " << tolerance[o]
                 << ", \"file\": \"" << bytes_file(expected[o].data) << "\"}";
        }
        text << "]}";
        cases_.push_back(text.str());
        return true;
    }

    void finish() {
        std::ofstream out(folder_ / "cases.json");
        out << "[\n";
        for (std::size_t i = 0; i < cases_.size(); ++i)
            out << cases_[i] << (i + 1 < cases_.size() ? ",\n" : "\n");
        out << "]\n";
    }
    std::size_t count() const { return cases_.size(); }

  private:
    std::string buffer(const Plan& plan, std::size_t b, const std::string&) {
        const Buffer& x = plan.buffers[b];
        std::ostringstream out;
        out << "{\"dtype\": \"" << name(x.type.dtype) << "\", \"sizes\": " << json(x.type.sizes)
            << ", \"strides\": " << json(x.strides) << ", \"bytes\": " << number(x.bytes)
            << ", \"base\": " << x.base << ", \"offset\": " << number(x.offset)
            << ", \"arena\": " << (x.place == BufferPlace::Arena ? "true" : "false");
        if (x.place == BufferPlace::Constant && x.data)
            out << ", \"file\": \"" << bytes_file(*x.data) << "\"";
        out << "}";
        return out.str();
    }

    std::string kernel(const Kernel& k, const KernelStep& step, const std::string& id) {
        codegen::IrModule module = jit_.make_module(id);
        std::vector<GpuLaunch> launches;
        if (k.contraction)
            launches.push_back(
                codegen::emit_gpu_product(*module.module, k, jit_.target(), "kernel_0", *tile_));
        else
            launches = codegen::emit_nvptx(*module.module, k, jit_.target(), "kernel", form_);
        std::ofstream(folder_ / (id + ".ptx")) << jit_.assembly(std::move(module));
        bool triton = true;
        try {
            std::ofstream(folder_ / (id + ".py")) << to_triton(k, "kernel").source;
        } catch (const NotSupported&) {
            triton = false;
        }
        std::ostringstream out;
        out << "{\"id\": \"" << id << "\", \"triton\": " << (triton ? "true" : "false")
            << ", \"buffers\": [";
        for (std::size_t i = 0; i < step.buffers.size(); ++i)
            out << (i ? ", " : "") << step.buffers[i];
        out << "], \"launches\": [";
        for (std::size_t i = 0; i < launches.size(); ++i)
            out << (i ? ", " : "") << "{\"symbol\": \"" << launches[i].symbol
                << "\", \"blocks\": " << number(launches[i].blocks())
                << ", \"threads\": " << launches[i].threads
                << ", \"shared\": " << number(launches[i].shared_bytes) << "}";
        out << "]}";
        return out.str();
    }

    std::string bytes_file(const std::vector<std::uint8_t>& data) {
        std::string file = "data" + std::to_string(files_++) + ".bin";
        std::ofstream(folder_ / file, std::ios::binary)
            .write(reinterpret_cast<const char*>(data.data()),
                   static_cast<std::streamsize>(data.size()));
        return file;
    }

    std::filesystem::path folder_;
    codegen::Jit jit_;
    const codegen::ProductTile* tile_ = nullptr;  // of the case's products
    codegen::NestForm form_;                      // of its nests
    std::vector<std::string> cases_;
    int files_ = 0;
};

struct Written {
    const char* name;
    const char* graph;
    double tolerance;
};

// The kernels of real models at sizes that fill a few blocks, with rows shorter and longer than a
// block.
constexpr Written kWritten[] = {
    {"pointwise", R"(graph(%0 "x": f32[37, 129], %1 "y": f32[37, 129]) {
  %2: f32[37, 129] = add(%0, %1)
  %3: f32[37, 129] = tanh(%2)
  %4: f32[37, 129] = mul(%3, %0)
  return %4
})",
     1e-5},
    {"transposed", R"(graph(%0 "x": f32[65, 33]) {
  %1: f32[33, 65] = permute(%0) {dims=(1, 0)}
  %2: f32[33, 65] = exp(%1)
  return %2
})",
     1e-5},
    {"softmax", R"(graph(%0 "x": f32[19, 1000]) {
  %1: f32[19] = amax(%0) {dims=(1)}
  %2: f32[19, 1000] = broadcast(%1) {sizes=(19, 1000), dims=(0)}
  %3: f32[19, 1000] = sub(%0, %2)
  %4: f32[19, 1000] = exp(%3)
  %5: f32[19] = sum(%4) {dims=(1)}
  %6: f32[19, 1000] = broadcast(%5) {sizes=(19, 1000), dims=(0)}
  %7: f32[19, 1000] = div(%4, %6)
  return %7
})",
     1e-5},
    {"layer_norm_bf16", R"(graph(%0 "x": bf16[23, 768], %1 "w": bf16[768], %2 "b": bf16[768]) {
  %3: f32[23, 768] = convert(%0) {dtype=f32}
  %4: f32[23] = sum(%3) {dims=(1)}
  %5: f32[23] = full() {dtype=f32, sizes=(23), value=768.0}
  %6: f32[23] = div(%4, %5)
  %7: f32[23, 768] = broadcast(%6) {sizes=(23, 768), dims=(0)}
  %8: f32[23, 768] = sub(%3, %7)
  %9: f32[23, 768] = mul(%8, %8)
  %10: f32[23] = sum(%9) {dims=(1)}
  %11: f32[23] = div(%10, %5)
  %12: f32[23] = full() {dtype=f32, sizes=(23), value=1e-05}
  %13: f32[23] = add(%11, %12)
  %14: f32[23] = rsqrt(%13)
  %15: f32[23, 768] = broadcast(%14) {sizes=(23, 768), dims=(0)}
  %16: f32[23, 768] = mul(%8, %15)
  %17: f32[768] = convert(%1) {dtype=f32}
  %18: f32[23, 768] = broadcast(%17) {sizes=(23, 768), dims=(1)}
  %19: f32[23, 768] = mul(%16, %18)
  %20: f32[768] = convert(%2) {dtype=f32}
  %21: f32[23, 768] = broadcast(%20) {sizes=(23, 768), dims=(1)}
  %22: f32[23, 768] = add(%19, %21)
  %23: bf16[23, 768] = convert(%22) {dtype=bf16}
  return %23
})",
     2e-2},
    {"sums", R"(graph(%0 "x": f32[40, 300]) {
  %1: f32[40] = sum(%0) {dims=(1)}
  %2: f32[300] = sum(%0) {dims=(0)}
  %3: f32[] = sum(%0) {dims=(0, 1)}
  return %1, %2, %3
})",
     1e-5},
    {"column_sums", R"(graph(%0 "x": bf16[2048, 96]) {
  %1: f32[2048, 96] = convert(%0) {dtype=f32}
  %2: f32[96] = sum(%1) {dims=(0)}
  %3: f32[2048, 96] = mul(%1, %1)
  %4: f32[96] = sum(%3) {dims=(0)}
  return %2, %4
})",
     1e-5},
    {"many_columns", R"(graph(%0 "x": f32[1024, 272]) {
  %1: f32[272] = sum(%0) {dims=(0)}
  %2: f32[272] = amax(%0) {dims=(0)}
  return %1, %2
})",
     1e-5},
    {"channel_sums", R"(graph(%0 "x": f32[64, 7, 7, 64]) {
  %1: f32[64] = sum(%0) {dims=(0, 1, 2)}
  return %1
})",
     1e-5},
    {"wide_columns", R"(graph(%0 "x": f32[24, 69632]) {
  %1: f32[69632] = sum(%0) {dims=(0)}
  %2: i64[69632] = argmax(%0) {dims=(0)}
  return %1, %2
})",
     1e-5},
    {"large_transposed", R"(graph(%0 "x": f32[512, 1088]) {
  %1: f32[1088, 512] = permute(%0) {dims=(1, 0)}
  %2: f32[1088, 512] = exp(%1)
  return %2
})",
     1e-5},
    {"argmax", R"(graph(%0 "x": f32[17, 513]) {
  %1: i64[17] = argmax(%0) {dims=(1)}
  %2: f32[17] = amin(%0) {dims=(1)}
  return %1, %2
})",
     0},
};

std::vector<Tensor> random_inputs(const Graph& g) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    std::vector<Tensor> inputs;
    for (const Input& in : g.inputs()) {
        Ints sizes;
        for (const Expr& e : g.type(in.value).sizes) sizes.push_back(e.constant());
        Tensor x(g.type(in.value).dtype, sizes);
        for (std::int64_t i = 0; i < x.numel(); ++i) {
            Num n;
            n.re = normal(random);
            x.set(i, n);
        }
        inputs.push_back(std::move(x));
    }
    return inputs;
}

std::vector<Tensor> dense_inputs(const fuzz::RandomGraph& r) {
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < r.inputs.size(); ++i) {
        const Type& t = r.graph.type(r.graph.inputs()[i].value);
        Ints sizes;
        for (const Expr& e : t.sizes) sizes.push_back(e.constant());
        Tensor x(t.dtype, sizes);
        x.data = r.inputs[i];
        inputs.push_back(std::move(x));
    }
    return inputs;
}

/// A linear layer of M rows, N columns and sums of K with a bias, a GELU by erf and a residual.
/// The pre-activation is a result too.
std::string linear_text(int m, int n, int k, const std::string& dtype) {
    const auto matrix = [](const std::string& type, int rows, int columns) {
        return type + "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
    };
    const std::string out = matrix(dtype, m, n), wide = matrix("f32", m, n);
    const auto number = [&](int id, const char* value) {
        return "  %" + std::to_string(id) + ": " + wide + " = full() {dtype=f32, sizes=(" +
               std::to_string(m) + ", " + std::to_string(n) + "), value=" + value + "}\n";
    };
    return "graph(%0 \"x\": " + matrix(dtype, m, k) + ", %1 \"w\": " + matrix(dtype, n, k) +
           ", %2 \"b\": " + dtype + "[" + std::to_string(n) + "], %3 \"r\": " + out + ") {\n" +
           "  %4: " + matrix(dtype, k, n) + " = permute(%1) {dims=(1, 0)}\n" + "  %5: " + out +
           " = matmul(%0, %4)\n" + "  %6: " + out + " = broadcast(%2) {sizes=(" +
           std::to_string(m) + ", " + std::to_string(n) + "), dims=(1)}\n" + "  %7: " + out +
           " = add(%5, %6)\n" + "  %8: " + wide + " = convert(%7) {dtype=f32}\n" +
           number(9, "0.7071067811865476") + "  %10: " + wide + " = mul(%8, %9)\n" +
           "  %11: " + wide + " = erf(%10)\n" + number(12, "1.0") + "  %13: " + wide +
           " = add(%11, %12)\n" + number(14, "0.5") + "  %15: " + wide + " = mul(%8, %14)\n" +
           "  %16: " + wide + " = mul(%15, %13)\n" + "  %17: " + out +
           " = convert(%16) {dtype=" + dtype + "}\n" + "  %18: " + out + " = add(%17, %3)\n" +
           "  return %18, %7\n}";
}

/// Every tile, at sizes whose edges lie inside of tiles and at one that tiles divide.
bool write_products(CaseWriter& writer) {
    int next = 0;
    for (const codegen::ProductTile& tile : codegen::kProductTiles) {
        const auto side = [&](unsigned size) { return static_cast<int>(size); };
        const int sizes[][3] = {{side(tile.rows()) + 37, side(tile.columns) + 24, 328},
                                {2 * side(tile.rows()), 2 * side(tile.columns), 128},
                                {3, 8, 8}};
        for (const auto& [m, n, k] : sizes) {
            const bool half = next % 2 == 1;
            const Graph g = parse_graph(linear_text(m, n, k, half ? "f16" : "bf16"));
            const double tolerance = half ? 4e-3 : 2e-2;
            if (!writer.write("product" + std::to_string(next++), g, random_inputs(g),
                              {tolerance, tolerance}, &tile))
                return false;
        }
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: ingot_gpu_cases FOLDER [random graphs]\n");
        return 2;
    }
    CaseWriter writer(argv[1]);
    // As they would be laid over threads, and in forms that measuring might choose.
    constexpr codegen::NestForm kForms[] = {{},          {64, 1, 1},  {1024, 8, 8},
                                            {128, 4, 2}, {512, 2, 4}, {32, 8, 1}};
    for (const Written& w : kWritten)
        for (const codegen::NestForm& form : kForms) {
            Graph g = parse_graph(w.graph);
            const std::string name =
                form == codegen::NestForm{} ? w.name : w.name + ("_" + to_string(form));
            if (!writer.write(name, g, random_inputs(g),
                              std::vector<double>(g.outputs().size(), w.tolerance), nullptr,
                              form)) {
                std::fprintf(stderr, "%s has a step that is no kernel\n", w.name);
                return 1;
            }
        }
    if (!write_products(writer)) {
        std::fprintf(stderr, "a product has a step that is no kernel\n");
        return 1;
    }
    const std::uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 60;
    fuzz::Limits limits;
    limits.contractions = false;
    int refused = 0;
    for (std::uint64_t seed = 1; seed <= count; ++seed) {
        fuzz::RandomGraph r = fuzz::make_random_graph(seed, limits);
        try {
            // On a GPU divisions and square roots are IEEE's too, so exact outputs stay exact.
            if (!writer.write("random" + std::to_string(seed), r.graph, dense_inputs(r),
                              r.tolerance))
                ++refused;
        } catch (const NotSupported& e) {
            ++refused;
        }
    }
    writer.finish();
    std::printf("%zu cases, %d graphs without a GPU form\n", writer.count(), refused);
    return 0;
}
