-- A cache of a cluster's objects. The file is recreated at each start.

CREATE TABLE kinds (
    id INTEGER PRIMARY KEY,
    "group" TEXT NOT NULL,
    version TEXT NOT NULL,
    kind TEXT NOT NULL,
    plural TEXT NOT NULL,
    namespaced INTEGER NOT NULL,
    UNIQUE ("group", version, kind, plural, namespaced)
);

CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    kind_id INTEGER NOT NULL REFERENCES kinds (id),
    version TEXT NOT NULL,
    -- JSON text, without metadata.managedFields
    body TEXT NOT NULL
);

-- Earlier versions of objects, the bases of patches. The oldest give way to newer ones.
CREATE TABLE earlier (
    id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL,
    version TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX earlier_by_uid ON earlier (uid, version);
