// Uses the part of flashstep that knows no torch: writes a token file.
#include <cstdint>
#include <flashstep/base/text.h>
#include <flashstep/data/token_file.h>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  flashstep::TokenFileWriter writer(argv[1], 1000);
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < 100; ++id) ids.push_back(id);
  writer.append(ids);
  writer.commit();
  return flashstep::with_commas(1234567) == "1,234,567" ? 0 : 1;
}
