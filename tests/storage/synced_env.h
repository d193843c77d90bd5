// A RocksDB environment that knows how much of each file was synced, so that a test can take the
// state of a folder as a power cut would leave it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "proto/mutex.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace terrace::testing {

class SyncedFileSystem : public rocksdb::FileSystemWrapper {
 public:
  SyncedFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "SyncedFileSystem"; }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* context) override {
    const auto status = FileSystemWrapper::NewWritableFile(path, options, result, context);
    if (!status.ok()) return status;
    {
      MutexLock lock(&mutex_);
      synced_[path] = 0;
    }
    *result = std::make_unique<File>(this, path, std::move(*result));
    return status;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override {
    const auto status = FileSystemWrapper::RenameFile(from, to, options, context);
    MutexLock lock(&mutex_);
    if (const auto file = synced_.find(from); status.ok() && file != synced_.end()) {
      synced_[to] = file->second;
      synced_.erase(from);
    }
    return status;
  }

  // Copies `folder` to `target`: of each file what was synced, and of the rest as much as `seed`
  // draws.
  void PowerCut(const std::string& folder, const std::string& target, uint64_t seed) {
    namespace fs = std::filesystem;
    std::mt19937_64 random(seed);
    MutexLock lock(&mutex_);
    fs::create_directories(target);
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const fs::path copy = target / fs::relative(entry.path(), folder);
      if (entry.is_directory()) {
        fs::create_directories(copy);
        continue;
      }
      fs::copy_file(entry.path(), copy);
      const auto file = synced_.find(entry.path().string());
      if (file == synced_.end()) continue;
      const uint64_t bytes = fs::file_size(copy);
      if (bytes <= file->second) continue;
      const uint64_t loose = bytes - file->second;
      fs::resize_file(copy, file->second + (random() % 2 == 0 ? 0 : random() % (loose + 1)));
    }
  }

 private:
  class File : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(SyncedFileSystem* system, std::string path, std::unique_ptr<rocksdb::FSWritableFile> file)
        : FSWritableFileOwnerWrapper(std::move(file)), system_(system), path_(std::move(path)) {}

    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      const auto status = FSWritableFileOwnerWrapper::Append(data, options, context);
      if (status.ok()) written_ += data.size();
      return status;
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* context) override {
      const uint64_t written = written_;
      return Noted(written, FSWritableFileOwnerWrapper::Sync(options, context));
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* context) override {
      const uint64_t written = written_;
      return Noted(written, FSWritableFileOwnerWrapper::Fsync(options, context));
    }

   private:
    rocksdb::IOStatus Noted(uint64_t written, rocksdb::IOStatus status) {
      if (!status.ok()) return status;
      MutexLock lock(&system_->mutex_);
      auto file = system_->synced_.find(path_);
      if (file != system_->synced_.end()) file->second = std::max(file->second, written);
      return status;
    }

    SyncedFileSystem* const system_;
    const std::string path_;
    std::atomic<uint64_t> written_{0};
  };

  Mutex mutex_;
  std::map<std::string, uint64_t> synced_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::testing
