#include "flashstep/data/download.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <curl/curl.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "flashstep/base/error.h"
#include "flashstep/base/files.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"

namespace flashstep::data {
namespace {

namespace fs = std::filesystem;

constexpr long kConnectSeconds = 20;
constexpr long kStalledSeconds = 30;  // with less than a byte a second: the connection is dead

// The bytes that have come so far. Not an AtomicFile, because they must outlive this process.
class PartialFile {
 public:
  explicit PartialFile(const fs::path& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw_errno(errno, str("cannot create ", path.string()));
    size_bytes_ = static_cast<uint64_t>(std::max<off_t>(0, ::lseek(descriptor_, 0, SEEK_END)));
  }
  ~PartialFile() { ::close(descriptor_); }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  uint64_t size_bytes() const { return size_bytes_; }

  // 0, or the number of the error.
  int append(const char* data, size_t size) {
    while (size > 0) {
      const ssize_t written = ::write(descriptor_, data, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      data += written;
      size -= static_cast<size_t>(written);
      size_bytes_ += static_cast<uint64_t>(written);
    }
    return 0;
  }

  void clear() {
    if (::ftruncate(descriptor_, 0) != 0) throw_errno(errno, str("cannot empty ", path_.string()));
    ::lseek(descriptor_, 0, SEEK_SET);
    size_bytes_ = 0;
  }

  void finish(const fs::path& final_path) {
    if (::fsync(descriptor_) != 0) throw_errno(errno, str("cannot flush ", path_.string()));
    std::error_code error;
    fs::rename(path_, final_path, error);
    if (error) throw_errno(error.value(), str("cannot finish ", final_path.string()));
    sync_directory(final_path.parent_path());
  }

 private:
  fs::path path_;
  int descriptor_;
  uint64_t size_bytes_ = 0;
};

// One attempt, and what the server said in the headers of all its answers.
struct Transfer {
  PartialFile& file;
  const ProgressFunction& progress;
  CURL* curl;
  std::optional<uint64_t> expected_size;  // what the caller knows
  uint64_t range_begin = 0;               // first byte asked for
  // From the headers:
  std::optional<uint64_t> linked_size{}, range_total{}, length{};
  std::string linked_sha256{};
  // From the body:
  bool any_body = false;
  bool wrong_range = false;
  bool wrong_size = false;
  int write_error = 0;

  long status() const {
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }
  // The whole file's size, as far as the server told it.
  std::optional<uint64_t> total() const {
    if (linked_size) return linked_size;
    if (range_total) return range_total;
    return status() == 200 ? length : std::nullopt;
  }
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The 64 digits of a SHA-256 in quotes or not; empty when it is another kind of tag.
std::string parse_sha256(std::string_view text) {
  if (text.size() == 66 && text.front() == '"' && text.back() == '"') text = text.substr(1, 64);
  const std::string digits = lower(text);
  const bool is_hash =
      digits.size() == 64 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hash ? digits : "";
}

size_t on_header(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size);
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) {
    // A status line: the headers of the next answer follow; those about a body were not the last.
    if (line.starts_with("HTTP/")) transfer.length = transfer.range_total = std::nullopt;
    return size;
  }
  const std::string name = lower(line.substr(0, colon));
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && std::isspace(static_cast<unsigned char>(value.front()))) {
    value.remove_prefix(1);
  }
  while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back()))) {
    value.remove_suffix(1);
  }
  if (name == "content-length") transfer.length = parse_number(value);
  if (name == "x-linked-size") transfer.linked_size = parse_number(value);
  if (name == "x-linked-etag") transfer.linked_sha256 = parse_sha256(value);
  if (name == "content-range") {  // "bytes 100-199/200", or "bytes */200" with status 416
    transfer.range_total = parse_number(value.substr(value.find('/') + 1));
    const std::string begins = str("bytes ", transfer.range_begin, "-");
    transfer.wrong_range = !value.starts_with(begins) && !value.starts_with("bytes */");
  }
  return size;
}

size_t on_body(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (transfer.expected_size &&
      transfer.total().value_or(*transfer.expected_size) != *transfer.expected_size) {
    transfer.wrong_size = true;
    return 0;
  }
  if (!transfer.any_body && transfer.status() == 200) {
    // The server sends everything, asked for a range or not.
    try {
      transfer.file.clear();
    } catch (const MachineError&) {
      transfer.write_error = errno;
      return 0;
    }
  }
  transfer.any_body = true;
  if (transfer.wrong_range && transfer.status() == 206) return 0;
  transfer.write_error = transfer.file.append(data, size);
  return transfer.write_error == 0 ? size : 0;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<Transfer*>(user);
  if (transfer.progress && transfer.any_body) {
    transfer.progress(transfer.file.size_bytes(), transfer.total().value_or(0));
  }
  return SignalGuard::received() != 0;
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
        partial_path_(fs::path(path) += ".partial"),
        options_(options),
        file_(partial_path_),
        curl_(make_handle()) {}

  void run() {
    double pause = options_.first_pause_seconds;
    for (int attempt = 1;; ++attempt) {
      const std::string failure = try_once();
      if (failure.empty()) break;
      if (attempt >= options_.attempts) throw MachineError(failure);
      sleep(pause);
      pause *= 2;
    }
    file_.finish(path_);
  }

 private:
  // "" when the file is whole and right; else why not, where another attempt may help. Throws
  // where none can.
  std::string try_once() {
    Transfer transfer{file_, options_.progress, curl_.get(), options_.size_bytes};
    const bool resumed = file_.size_bytes() > 0;
    const CURLcode code = perform(transfer);
    check_interrupted();
    reached_ = reached_ || transfer.status() != 0;
    if (transfer.write_error != 0) {
      throw_errno(transfer.write_error, str("cannot write ", partial_path_.string()));
    }
    const long status = transfer.status();
    if (code == CURLE_HTTP_RETURNED_ERROR && status == 416 && resumed) {
      // Nothing lies behind what is here: it may be the whole file, or not belong to it at all.
      if (transfer.total() != file_.size_bytes()) return start_over("the partial file is too long");
    } else if (code == CURLE_HTTP_RETURNED_ERROR) {
      const std::string failure =
          str("[download] expected ", url_, ", got HTTP status ", status, " from ", host_of(url_));
      const bool may_pass = status >= 500 || status == 408 || status == 429;
      if (!may_pass) throw MachineError(failure);
      return failure;
    } else if (transfer.wrong_size) {
      throw MachineError(size_mismatch(*options_.size_bytes, *transfer.total()));
    } else if (transfer.wrong_range) {
      return start_over("another range than the one asked for");
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
        const std::string failure = str("[download] cannot reach ", host_of(url_), " (", reason,
                                        "): is this machine offline? Get ", url_,
                                        " by other means and put it at ", path_.string());
        if (!reached_) throw MachineError(failure);  // no use in waiting for what was never there
        return failure;
      }
      default:
        return str("[download] ", url_, " broke off after ", human_bytes(file_.size_bytes()),
                   transfer.total() ? str(" of ", human_bytes(*transfer.total())) : "", " (",
                   reason, "); the next call goes on from there");
    }
  }

  std::string size_mismatch(uint64_t expected, uint64_t got) const {
    return str("[download] expected ", with_commas(static_cast<int64_t>(expected)), " bytes from ",
               url_, ", got ", with_commas(static_cast<int64_t>(got)));
  }

  std::string check_content(const Transfer& transfer, bool resumed) {
    const auto said = transfer.total();
    for (const auto& expected : {options_.size_bytes, said}) {
      if (!expected || *expected == file_.size_bytes()) continue;
      const std::string failure = size_mismatch(*expected, file_.size_bytes());
      if (resumed) return start_over(failure);
      file_.clear();
      throw MachineError(failure);
    }
    const std::string expected =
        options_.sha256.empty() ? transfer.linked_sha256 : lower(options_.sha256);
    if (expected.empty()) return "";
    const std::string actual = sha256_of(partial_path_);
    if (actual == expected) return "";
    const std::string failure =
        str("[download] expected SHA-256 ", expected, " from ", url_, ", got ", actual);
    if (resumed) return start_over(failure);
    file_.clear();
    throw MachineError(failure);
  }

  // What was there before this call may have come from another file: once more, from nothing.
  std::string start_over(const std::string& why) {
    file_.clear();
    return why;
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
  const fs::path partial_path_;
  const DownloadOptions& options_;
  PartialFile file_;
  CurlHandle curl_;
  bool reached_ = false;  // the server has answered once in this call
  char error_text_[CURL_ERROR_SIZE] = "";
};

}  // namespace

void download(const std::string& url, const fs::path& path, const DownloadOptions& options) {
  Downloader(url, path, options).run();
}

}  // namespace flashstep::data
