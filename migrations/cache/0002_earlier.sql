-- Earlier versions of objects, the bases of patches. The oldest give way to newer ones.
CREATE TABLE earlier (
    id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL,
    version TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX earlier_by_uid ON earlier (uid, version);
