// Fetches files by libcurl.
#include "flashstep/data/download.h"

#include <chrono>
#include <curl/curl.h>
#include <exception>
#include <memory>
#include <mutex>
#include <openssl/evp.h>
#include <thread>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/data/http_headers.h"
#include "flashstep/data/partial_file.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

constexpr long kConnectSeconds = 20;
constexpr long kStalledSeconds = 30;  // with less than a byte a second: the connection is dead

// One attempt. libcurl calls the functions below with it; no exception may cross them.
struct Transfer {
  PartialFile& file;
  const DownloadOptions& options;
  CURL* curl;
  uint64_t range_begin = 0;  // first byte asked for
  HttpHeaders headers{};
  bool any_body = false;
  bool wrong_range = false, wrong_size = false;
  int write_error = 0;
  std::exception_ptr exception{};  // of the progress function

  long status() const {
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }
  std::optional<uint64_t> file_size() const { return headers.file_size(status()); }
};

size_t on_header(char* data, size_t, size_t size, void* user) {
  static_cast<Transfer*>(user)->headers.read_line({data, size});
  return size;
}

// Whether the body that begins now is the one that was asked for.
bool accept_body(Transfer& transfer) {
  const auto known = transfer.options.size_bytes, said = transfer.file_size();
  transfer.wrong_size = known && said && *known != *said;
  const bool is_part = transfer.status() == 206;
  transfer.wrong_range = is_part && transfer.headers.range_begin != transfer.range_begin;
  if (transfer.wrong_size || transfer.wrong_range) return false;
  // A server that knows no ranges sends everything.
  if (!is_part) transfer.write_error = transfer.file.clear();
  return transfer.write_error == 0;
}

size_t on_body(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (!transfer.any_body && !accept_body(transfer)) return 0;
  transfer.any_body = true;
  transfer.write_error = transfer.file.append(data, size);
  return transfer.write_error == 0 ? size : 0;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    if (transfer.options.progress && transfer.any_body) {
      transfer.options.progress(transfer.file.size_bytes(), transfer.file_size().value_or(0));
    }
  } catch (...) {
    transfer.exception = std::current_exception();
  }
  return transfer.exception != nullptr || SignalGuard::received() != 0;
}

struct CurlDeleter {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
};
using CurlHandle = std::unique_ptr<CURL, CurlDeleter>;

CurlHandle make_handle() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  CurlHandle curl(curl_easy_init());
  if (!curl) throw MachineError("[download] libcurl cannot be initialised");
  return curl;
}

// "host.org" of "https://host.org/path", for messages.
std::string host_of(const std::string& url) {
  const size_t begin = url.find("://");
  if (begin == std::string::npos) return url;
  return url.substr(begin + 3, url.find('/', begin + 3) - begin - 3);
}

std::string sha256_of(const fs::path& path) {
  constexpr size_t kChunkBytes = 4 << 20;
  const MappedFile file(path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  bool good = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (size_t at = 0; good && at < file.size_bytes(); at += kChunkBytes) {
    const std::string_view chunk = file.bytes().substr(at, kChunkBytes);
    good = EVP_DigestUpdate(context.get(), chunk.data(), chunk.size()) == 1;
    file.release_before(at);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned digest_bytes = 0;
  good = good && EVP_DigestFinal_ex(context.get(), digest, &digest_bytes) == 1;
  if (!good) throw MachineError("[download] OpenSSL cannot compute a SHA-256");
  std::string hex;
  for (unsigned i = 0; i < digest_bytes; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

class Downloader {
 public:
  Downloader(const std::string& url, const fs::path& path, const DownloadOptions& options)
      : url_(url),
        path_(path),
        options_(options),
        file_(fs::path(path) += ".partial"),
        curl_(make_handle()) {}

  bool run() {
    double pause = options_.first_pause_seconds;
    for (int attempt = 1;; ++attempt) {
      const std::string failure = try_once();
      if (failure.empty()) break;
      if (attempt >= options_.attempts) throw MachineError(failure);
      sleep(pause);
      pause *= 2;
    }
    file_.finish(path_);
    return has_sha256_;
  }

 private:
  // "" when the file is whole and right; else why not, where another attempt may help. Throws
  // where none can.
  std::string try_once() {
    Transfer transfer{file_, options_, curl_.get()};
    const bool resumed = file_.size_bytes() > 0;
    const CURLcode code = perform(transfer);
    check_interrupted();
    if (transfer.exception) std::rethrow_exception(transfer.exception);
    reached_ = reached_ || transfer.status() != 0;
    if (transfer.write_error != 0) {
      throw_errno(transfer.write_error, str("cannot write ", file_.path().string()));
    }
    const long status = transfer.status();
    if (code == CURLE_HTTP_RETURNED_ERROR && status == 416 && resumed) {
      // Nothing lies behind what is here: it may be the whole file, or not belong to it at all.
      if (transfer.file_size() != file_.size_bytes()) return start_over(transfer);
    } else if (code == CURLE_HTTP_RETURNED_ERROR) {
      std::string failure =
          str("[download] expected ", url_, ", got HTTP status ", status, " from ", host_of(url_));
      const bool may_pass = status >= 500 || status == 408 || status == 429;
      if (!may_pass) throw MachineError(failure);
      return failure;
    } else if (transfer.wrong_size) {
      throw MachineError(size_mismatch(*options_.size_bytes, *transfer.file_size()));
    } else if (transfer.wrong_range) {
      return start_over(transfer);
    } else if (code != CURLE_OK) {
      return describe(code, transfer);
    }
    return check_content(transfer, resumed);
  }

  CURLcode perform(Transfer& transfer) {
    CURL* curl = curl_.get();
    curl_easy_reset(curl);
    error_text_[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_URL, url_.c_str());
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error_text_);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "flashstep");
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
    // Not RESUME_FROM: with it libcurl itself gives up on servers that know no ranges.
    transfer.range_begin = file_.size_bytes();
    const std::string range = str(transfer.range_begin, "-");
    if (transfer.range_begin > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
    return curl_easy_perform(curl);
  }

  std::string describe(CURLcode code, const Transfer& transfer) const {
    const std::string reason = error_text_[0] != '\0' ? error_text_ : curl_easy_strerror(code);
    switch (code) {
      case CURLE_UNSUPPORTED_PROTOCOL:
      case CURLE_URL_MALFORMAT:
        throw UserError(str("[download] expected an http or https address, got ", url_));
      case CURLE_COULDNT_RESOLVE_HOST:
      case CURLE_COULDNT_RESOLVE_PROXY:
      case CURLE_COULDNT_CONNECT: {
        std::string failure = str("[download] cannot reach ", host_of(url_), " (", reason,
                                  "): is this machine offline? Get ", url_,
                                  " by other means and put it at ", path_.string());
        if (!reached_) throw MachineError(failure);  // no use in waiting for what was never there
        return failure;
      }
      default:
        return str("[download] ", url_, " broke off after ", human_bytes(file_.size_bytes()),
                   transfer.file_size() ? str(" of ", human_bytes(*transfer.file_size())) : "",
                   " (", reason, "); the next call goes on from there");
    }
  }

  std::string size_mismatch(uint64_t expected, uint64_t got) const {
    return str("[download] expected ", with_commas(static_cast<int64_t>(expected)), " bytes from ",
               url_, ", got ", with_commas(static_cast<int64_t>(got)));
  }

  std::string check_content(const Transfer& transfer, bool resumed) {
    const auto said = transfer.file_size();
    for (const auto& expected : {options_.size_bytes, said}) {
      if (!expected || *expected == file_.size_bytes()) continue;
      const std::string failure = size_mismatch(*expected, file_.size_bytes());
      if (resumed) return start_over(transfer);
      discard();
      throw MachineError(failure);
    }
    const std::string& expected = transfer.headers.linked_sha256;
    if (expected.empty()) return "";
    const std::string actual = sha256_of(file_.path());
    has_sha256_ = actual == expected;
    if (has_sha256_) return "";
    const std::string failure =
        str("[download] expected SHA-256 ", expected, " from ", url_, ", got ", actual);
    if (resumed) return start_over(transfer);
    discard();
    throw MachineError(failure);
  }

  // What an earlier call left may belong to another file: once more, from nothing.
  std::string start_over(const Transfer& transfer) {
    discard();
    return str("[download] expected the rest of ", url_, " from byte ", transfer.range_begin,
               " on, got what does not fit; the next call starts over");
  }

  void discard() {
    const int error = file_.clear();
    if (error != 0) throw_errno(error, str("cannot empty ", file_.path().string()));
  }

  void check_interrupted() const {
    if (const int signal = SignalGuard::received()) {
      throw Interrupted(signal, str("interrupted; ", human_bytes(file_.size_bytes()), " of ",
                                    path_.string(), " are kept, the next call goes on from there"));
    }
  }

  void sleep(double seconds) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      check_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  const std::string& url_;
  const fs::path& path_;
  const DownloadOptions& options_;
  PartialFile file_;
  CurlHandle curl_;
  bool reached_ = false;     // the server has answered once in this call
  bool has_sha256_ = false;  // the content has the SHA-256 that came with it
  char error_text_[CURL_ERROR_SIZE] = "";
};

bool fetch_by_curl(const std::string& url, const fs::path& path, const DownloadOptions& options) {
  return Downloader(url, path, options).run();
}

[[maybe_unused]] const bool fetches = (set_downloader(fetch_by_curl), true);

}  // namespace

}  // namespace flashstep
