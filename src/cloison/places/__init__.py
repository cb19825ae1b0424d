"""Places: files and folders, on this machine's disk (a ``Path``) or on another file system (a ``Remote``), by few verbs."""

from cloison.places.copies import borrowed, download, fetched, forget, local_folder, scratch
from cloison.places.listing import below, found, sizes
from cloison.places.ranges import RangedFile, hold, opened, random_access
from cloison.places.remote import Place, Remote, on_disk, place
from cloison.places.verbs import absolute, beside, create, put, read, remove, remove_tree, size, stamp, together

__all__ = [
    "Place",
    "RangedFile",
    "Remote",
    "absolute",
    "below",
    "beside",
    "borrowed",
    "create",
    "download",
    "fetched",
    "forget",
    "found",
    "hold",
    "local_folder",
    "on_disk",
    "opened",
    "place",
    "put",
    "random_access",
    "read",
    "remove",
    "remove_tree",
    "scratch",
    "size",
    "sizes",
    "stamp",
    "together",
]
