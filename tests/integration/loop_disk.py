"""An ext4 of its own on a loop device, which can lose power, freeze and fill up."""
import fcntl
import os
import subprocess

from soak_support import Failure, wait_until

EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
NO_LOG_FLUSH = (2).to_bytes(4, "little")


def call(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


class LoopDisk:
    """Mounted at `folder`/mount until close(), whatever happens in between."""

    def __init__(self, folder, mebibytes):
        self.mount_point = folder / "mount"
        self.image = folder / "image"
        self.device = None
        self.mounted = self.frozen = False
        with open(self.image, "wb") as file:
            file.truncate(mebibytes << 20)
        self.mount_point.mkdir()
        try:
            # All at once: what is written later is the doing of those who use the disk.
            call("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)
            self.device = call("losetup", "--find", "--show", self.image)
            self.mount()
        except BaseException:
            self.close()
            raise

    def mount(self):
        call("mount", "-t", "ext4", "-o", "noatime", self.device, self.mount_point)
        self.mounted = True

    def unmount(self):
        def gone():
            done = subprocess.run(["umount", self.mount_point], capture_output=True, check=False)
            return done.returncode == 0
        wait_until(gone, 20, f"unmounting {self.mount_point}")
        self.mounted = False

    def bytes_written(self):
        """By whomever, since the device was made; what the page cache still holds is not there."""
        with open(f"/sys/block/{os.path.basename(self.device)}/stat", encoding="ascii") as stat:
            return int(stat.read().split()[6]) * 512  # a sector, whatever the device's is

    def cut_power(self):
        """From now on nothing reaches the disk, what the journal has not written included."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def power_on(self):
        self.unmount()
        self.mount()  # replays ext4's journal

    def freeze(self):
        call("fsfreeze", "--freeze", self.mount_point)
        self.frozen = True

    def thaw(self):
        call("fsfreeze", "--unfreeze", self.mount_point)
        self.frozen = False

    def fill(self, leave_bytes=0):
        """A file that takes what is free but `leave_bytes`; empty_again() removes it."""
        space = os.statvfs(self.mount_point)
        left = space.f_bfree * space.f_frsize - leave_bytes
        fd = os.open(self.mount_point / "filler", os.O_CREAT | os.O_WRONLY)
        try:
            while left >= 4096:
                try:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, left)
                    break
                except OSError:
                    left //= 2
        finally:
            os.close(fd)

    def empty_again(self):
        (self.mount_point / "filler").unlink()

    def close(self, keep_image=False):
        """After all who use it have ended."""
        if self.frozen:
            self.thaw()
        if self.mounted:
            self.unmount()
        if self.device:
            call("losetup", "--detach", self.device)
            self.device = None
        if not keep_image:
            self.image.unlink(missing_ok=True)


def why_not():
    """Why there can be no loop disk here; empty when there can."""
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        return "needs root and loop devices"
    found = subprocess.run(["losetup", "--find"], capture_output=True, check=False)
    return "" if found.returncode == 0 else "needs root and loop devices"
