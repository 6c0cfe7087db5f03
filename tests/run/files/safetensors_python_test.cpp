// Python reads what Tutti writes and the other way round: with the module `safetensors` where it is
// installed, else with a reader made of struct and json.

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "run/files/samples.h"
#include "support/running_command.h"

namespace tutti::test {
namespace {

constexpr const char* kScript = R"python(
import json, struct, sys
def read(data):
    length, = struct.unpack("<Q", data[:8])
    header, rest, end = json.loads(data[8:8 + length]), data[8 + length:], 0
    assert length % 8 == 0 and data[8:9] == b"{"
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, after = entry["data_offsets"]
        assert begin == end, name
        end = after
        yield name, {"dtype": entry["dtype"], "shape": entry["shape"], "data": rest[begin:after]}
    assert end == len(rest)
def write(tensors):
    header, rest = {}, b""
    for name, entry in tensors.items():
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"],
                        "data_offsets": [len(rest), len(rest) + len(entry["data"])]}
        rest += entry["data"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest
kind = "struct and json"
try:
    import safetensors
    read, kind = safetensors.deserialize, "safetensors " + safetensors.__version__
except ImportError:
    pass
print("reader", kind)
for name, entry in read(open(sys.argv[1], "rb").read()):
    print(name.encode().hex() or "-", entry["dtype"], ",".join(map(str, entry["shape"])) or "-",
          bytes(entry["data"]).hex() or "-")
open(sys.argv[2], "wb").write(write({
    "größe": {"dtype": "F32", "shape": [2], "data": struct.pack("<2f", 1.5, -2)},
    "leer": {"dtype": "I64", "shape": [0, 4], "data": b""},
    "zahl": {"dtype": "I64", "shape": [], "data": struct.pack("<q", -7)}}))
)python";

template <class Bytes>
std::string hex(const Bytes& bytes) {
  std::string text;
  for (const auto byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text.empty() ? "-" : text;
}

TEST(SafetensorsInPython, BothReadWhatTheOtherWrites) {
  if (std::system("python3 -c pass >/dev/null 2>&1") != 0) GTEST_SKIP() << "python3 is not here";
  const TemporaryFolder folder;
  Samples samples(11);
  SafetensorsContent content{.name = "ours", .metadata = {{"by", "tutti"}}};
  for (const StoredType type :
       {StoredType::U8, StoredType::F64, StoredType::F32, StoredType::F16, StoredType::BF16,
        StoredType::I64, StoredType::I32, StoredType::I16, StoredType::I8, StoredType::BOOL})
    content.tensors.push_back(samples.tensor(std::string(name_of(type)), type, {3, 7}));
  for (const char* name : {"größe \"q\"\n", "重み/🎻", ""})
    content.tensors.push_back(samples.tensor(name, StoredType::BF16, {5}));
  content.tensors.push_back(samples.tensor("scalar", StoredType::F32, {}));
  content.tensors.push_back(samples.tensor("empty", StoredType::F32, {2, 0}));
  SafetensorsWriter(content).write(*host_files(), folder.file(""));
  std::ofstream(folder.file("script.py")) << kScript;
  const auto command = fmt::format("python3 {0} {1} {2} >{3} 2>&1", folder.file("script.py"),
                                   folder.file("ours"), folder.file("theirs"), folder.file("out"));
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder.file("out"));

  std::istringstream lines(read_file(folder.file("out")));
  std::string line;
  std::getline(lines, line);
  std::cout << line << '\n';
  std::map<std::string, std::string> read;
  for (std::string name, rest; lines >> name && std::getline(lines, rest);) read[name] = rest;
  EXPECT_EQ(read.size(), content.tensors.size());
  for (const TensorToWrite& tensor : content.tensors) {
    std::string shape;
    for (const std::int64_t length : tensor.shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(length);
    EXPECT_EQ(read[hex(tensor.name)], fmt::format(" {} {} {}", name_of(tensor.type),
                                                  shape.empty() ? "-" : shape, hex(tensor.data)));
  }

  const SafetensorsFile theirs(host_files(), folder.file("theirs"));
  ASSERT_EQ(theirs.tensors().size(), 3U);
  const TensorEntry* const sizes = theirs.find("größe");
  ASSERT_NE(sizes, nullptr);
  std::vector<float> values(2);
  theirs.read(*sizes, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{1.5F, -2.0F}));
  ASSERT_NE(theirs.find("leer"), nullptr);
  EXPECT_EQ(theirs.find("leer")->shape, (std::vector<std::int64_t>{0, 4}));
  std::int64_t number = 0;
  ASSERT_NE(theirs.find("zahl"), nullptr);
  theirs.read(*theirs.find("zahl"), std::as_writable_bytes(std::span(&number, 1)));
  EXPECT_EQ(number, -7);
}

}  // namespace
}  // namespace tutti::test
