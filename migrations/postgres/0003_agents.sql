-- Agents' conversations, beyond one process and one disk. New columns have defaults, so that a replica of the version before this
-- one can go on writing beside.

-- What becomes of a session whose conversation cannot be taken up: 'fail', or 'fresh' to go on without it.
ALTER TABLE agent_harness_sessions ADD COLUMN on_context_loss TEXT NOT NULL DEFAULT 'fresh';

-- The files in which a session's agent keeps its memory: one archive, compressed and sealed, replaced when it changes.
CREATE TABLE agent_files (
    session_key BIGINT  NOT NULL PRIMARY KEY REFERENCES agent_harness_sessions (session_key) ON DELETE CASCADE,
    digest      TEXT    NOT NULL,
    content     BYTEA   NOT NULL,
    stored_at   BIGINT  NOT NULL
);
