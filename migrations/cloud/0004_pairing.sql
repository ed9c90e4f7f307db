-- Who may join and who has joined: tokens without their signatures, certificates without their keys. Times are Unix time
-- in seconds.

CREATE TABLE tokens (
  id      TEXT PRIMARY KEY,           -- random, 16 hexadecimal digits: `jti` of the JWT
  node    TEXT,                       -- the only node that it is for; NULL for any whose name is free
  created INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  uses    INTEGER NOT NULL,           -- how often it could be used at first
  used    INTEGER NOT NULL,           -- how often it has been used
  revoked INTEGER                     -- when it was; NULL if it was not
) STRICT, WITHOUT ROWID;

CREATE TABLE certificates (
  serial     TEXT PRIMARY KEY,        -- hexadecimal, without leading zeros
  node       TEXT NOT NULL,
  not_before INTEGER NOT NULL,
  not_after  INTEGER NOT NULL,
  revoked    INTEGER                  -- when it was; NULL if it was not
) STRICT, WITHOUT ROWID;
CREATE INDEX certificates_by_node ON certificates (node);
CREATE INDEX certificates_revoked ON certificates (node) WHERE revoked IS NOT NULL;
