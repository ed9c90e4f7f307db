-- Who may use the API: the certificates of operators, without their keys. One that is not here is no operator's. Times
-- are Unix time in seconds.

CREATE TABLE operators (
  serial  TEXT PRIMARY KEY,           -- hexadecimal, without leading zeros
  name    TEXT NOT NULL,
  role    TEXT NOT NULL,              -- view, edit or admin
  created INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  revoked INTEGER                     -- when it was; NULL if it was not
) STRICT, WITHOUT ROWID;
