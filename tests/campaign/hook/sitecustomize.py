"""Make the FAIL_READ-th read of the file named FAIL_FILE fail as a broken disk does, in a process with this on its path."""

import builtins
import errno
import io
import os

_open = builtins.open
_name, _left = os.environ.get("FAIL_FILE", ""), int(os.environ.get("FAIL_READ", "1"))


class _Failing(io.FileIO):
    def readinto(self, buffer):
        global _left
        _left -= 1
        if _left <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        return super().readinto(memoryview(buffer)[:4096])  # small reads, so that there are many of them


def _opened(file, mode="r", *args, **kwargs):
    if _name and mode == "rb" and isinstance(file, (str, os.PathLike)) and os.path.basename(os.fspath(file)) == _name:
        return io.BufferedReader(_Failing(file, "r"), 4096)
    return _open(file, mode, *args, **kwargs)


builtins.open = io.open = _opened
