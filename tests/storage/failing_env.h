// A RocksDB environment on a device that goes away and comes back.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace terrace::testing {

class FailingFileSystem : public rocksdb::FileSystemWrapper {
 public:
  FailingFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FailingFileSystem"; }

  // While set, nothing can be written or made; what is there can be read.
  std::atomic<bool> fails = false;

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* context) override {
    if (fails) return Error();
    const auto status = FileSystemWrapper::NewWritableFile(path, options, result, context);
    if (status.ok()) *result = std::make_unique<File>(this, std::move(*result));
    return status;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override {
    return fails ? Error() : FileSystemWrapper::RenameFile(from, to, options, context);
  }

 private:
  static rocksdb::IOStatus Error() { return rocksdb::IOStatus::IOError("no such device"); }

  class File : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(FailingFileSystem* system, std::unique_ptr<rocksdb::FSWritableFile> file)
        : FSWritableFileOwnerWrapper(std::move(file)), system_(system) {}

    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      if (system_->fails) return Error();
      return FSWritableFileOwnerWrapper::Append(data, options, context);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* context) override {
      if (system_->fails) return Error();
      return FSWritableFileOwnerWrapper::Sync(options, context);
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* context) override {
      if (system_->fails) return Error();
      return FSWritableFileOwnerWrapper::Fsync(options, context);
    }

   private:
    FailingFileSystem* const system_;
  };
};

}  // namespace terrace::testing
