-- Sessions, their turns, approvals and events; keys, idempotency, stream tickets; replicas.
-- Times are epoch milliseconds. JSON is TEXT. Ids and keys are made by the application.

CREATE TABLE agent_harness_sessions (
    session_key            INTEGER PRIMARY KEY,
    id                     TEXT    NOT NULL CONSTRAINT sessions_id_unique UNIQUE,
    org_id                 TEXT    NOT NULL CHECK (length(org_id) > 0),
    owner_id               TEXT    NOT NULL CHECK (length(owner_id) > 0),
    run_id                 TEXT    NOT NULL,
    thread_id              TEXT,
    harness_name           TEXT    NOT NULL,
    title                  TEXT    NOT NULL,
    metadata               TEXT    NOT NULL,
    instructions           TEXT,
    permission_mode        TEXT    NOT NULL,
    workspace_ref          TEXT    NOT NULL,
    turn_seconds           INTEGER NOT NULL,
    approval_seconds       INTEGER NOT NULL,
    settings               TEXT    NOT NULL,
    status                 TEXT    NOT NULL,
    stop_cause             TEXT,
    error_code             TEXT,
    error_message          TEXT,
    stopped_at             INTEGER,
    wish                   TEXT,
    turn_ordinal           INTEGER,
    turn_count             INTEGER NOT NULL,
    queued_turns           INTEGER NOT NULL,
    pending_approval       TEXT,
    pending_approval_count INTEGER NOT NULL,
    resolved_approval_ids  TEXT    NOT NULL,
    provider_session_id    TEXT,
    started                INTEGER NOT NULL,
    resume_state           BLOB,
    input_tokens           INTEGER NOT NULL,
    output_tokens          INTEGER NOT NULL,
    usage_complete         INTEGER NOT NULL,
    lease_holder           TEXT,
    lease_epoch            INTEGER NOT NULL,
    version                INTEGER NOT NULL,
    created_at             INTEGER NOT NULL,
    updated_at             INTEGER NOT NULL,
    last_active_at         INTEGER NOT NULL,
    CONSTRAINT sessions_status_known CHECK
        (status IN ('idle', 'running', 'awaiting_approval', 'stopped', 'errored', 'destroyed')),
    CONSTRAINT sessions_turn_when_busy CHECK
        (status NOT IN ('running', 'awaiting_approval') OR turn_ordinal IS NOT NULL),
    CONSTRAINT sessions_approval_when_awaiting CHECK
        ((status = 'awaiting_approval') = (pending_approval IS NOT NULL)),
    CONSTRAINT sessions_pending_counted CHECK
        ((pending_approval IS NULL) = (pending_approval_count = 0)),
    CONSTRAINT sessions_cause_when_stopped CHECK ((status = 'stopped') = (stop_cause IS NOT NULL)),
    CONSTRAINT sessions_error_when_errored CHECK ((status = 'errored') = (error_code IS NOT NULL)),
    CONSTRAINT sessions_time_when_over CHECK
        ((status IN ('stopped', 'errored', 'destroyed')) = (stopped_at IS NOT NULL))
);

CREATE UNIQUE INDEX sessions_run ON agent_harness_sessions (org_id, run_id);
CREATE INDEX sessions_of_org ON agent_harness_sessions (org_id, id);
CREATE INDEX sessions_of_owner ON agent_harness_sessions (org_id, owner_id, id);
CREATE INDEX sessions_of_thread ON agent_harness_sessions (org_id, thread_id, id) WHERE thread_id IS NOT NULL;
CREATE INDEX sessions_of_status ON agent_harness_sessions (org_id, status, id);
-- A turn whose process died before a driver had it: hardly ever more than none.
CREATE INDEX sessions_stranded ON agent_harness_sessions (session_key) WHERE status = 'running' AND lease_holder IS NULL;
CREATE INDEX sessions_held ON agent_harness_sessions (lease_holder) WHERE lease_holder IS NOT NULL;

CREATE TABLE turns (
    session_key    INTEGER NOT NULL REFERENCES agent_harness_sessions (session_key) ON DELETE CASCADE,
    ordinal        INTEGER NOT NULL,
    id             TEXT    NOT NULL CONSTRAINT turns_id_unique UNIQUE,
    prompt         TEXT    NOT NULL,
    status         TEXT    NOT NULL,
    urgent         INTEGER NOT NULL,
    stop_reason    TEXT,
    text           TEXT,
    error_code     TEXT,
    error_message  TEXT,
    input_tokens   INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    usage_complete INTEGER NOT NULL,
    rehydrated     INTEGER NOT NULL,
    metadata       TEXT    NOT NULL,
    traceparent    TEXT,
    created_at     INTEGER NOT NULL,
    started_at     INTEGER,
    ended_at       INTEGER,
    PRIMARY KEY (session_key, ordinal),
    CONSTRAINT turns_status_known CHECK (status IN ('queued', 'running', 'awaiting_approval', 'completed',
        'failed', 'cancelled', 'interrupted', 'timed_out')),
    CONSTRAINT turns_end_when_over CHECK
        ((status IN ('queued', 'running', 'awaiting_approval')) = (ended_at IS NULL))
);

CREATE INDEX turns_queued ON turns (session_key, urgent, ordinal) WHERE status = 'queued';

CREATE TABLE approvals (
    id            TEXT    NOT NULL PRIMARY KEY,
    session_key   INTEGER NOT NULL REFERENCES agent_harness_sessions (session_key) ON DELETE CASCADE,
    org_id        TEXT    NOT NULL,
    owner_id      TEXT    NOT NULL,
    session_id    TEXT    NOT NULL,
    run_id        TEXT    NOT NULL,
    turn_ordinal  INTEGER NOT NULL,
    turn_id       TEXT    NOT NULL,
    native_id     TEXT    NOT NULL,
    tool          TEXT    NOT NULL,
    title         TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    input         TEXT    NOT NULL,
    input_digest  TEXT    NOT NULL,
    options       TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    decision      TEXT,
    option_id     TEXT,
    reason        TEXT,
    edited_input  TEXT,
    decided_by    TEXT,
    requested_at  INTEGER NOT NULL,
    expires_at    INTEGER,
    decided_at    INTEGER,
    dispatched_at INTEGER,
    delivered_at  INTEGER,
    CONSTRAINT approvals_status_known CHECK
        (status IN ('pending', 'approved', 'denied', 'expired', 'cancelled', 'orphaned')),
    -- An approval that was decided and then cancelled or orphaned keeps its decision.
    CONSTRAINT approvals_decided_when_resolved CHECK (status NOT IN ('approved', 'denied') OR decision IS NOT NULL)
);

CREATE INDEX approvals_of_org ON approvals (org_id, id);
CREATE INDEX approvals_of_owner ON approvals (org_id, owner_id, id);
CREATE INDEX approvals_of_session ON approvals (session_key, id);
-- What a driver still has to do something about, among all that a long session ever asked.
CREATE INDEX approvals_open ON approvals (session_key, id) WHERE delivered_at IS NULL;
CREATE INDEX approvals_pending ON approvals (org_id, id) WHERE status = 'pending';
CREATE INDEX approvals_expiring ON approvals (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL;

-- The hot table: no foreign key (measured at half the rate), integer session key (half the bytes).
CREATE TABLE events (
    session_key INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    turn        INTEGER,
    at          INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    data        TEXT    NOT NULL,
    PRIMARY KEY (session_key, seq)
);

CREATE TABLE idempotency_keys (
    org_id       TEXT    NOT NULL,
    space        TEXT    NOT NULL,
    idem_key     TEXT    NOT NULL,
    fingerprint  TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    turn_id      TEXT,
    approval_id  TEXT,
    status       INTEGER,
    body         TEXT,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (org_id, space, idem_key)
);

CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

CREATE TABLE api_keys (
    id           TEXT    NOT NULL PRIMARY KEY,
    org_id       TEXT    NOT NULL CHECK (length(org_id) > 0),
    owner_id     TEXT,
    role         TEXT    NOT NULL,
    permissions  TEXT    NOT NULL,
    secret_hash  BLOB    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER,
    CONSTRAINT api_keys_role_known CHECK (role IN ('owner', 'service', 'admin')),
    CONSTRAINT api_keys_owner_named CHECK (role <> 'owner' OR owner_id IS NOT NULL)
);

CREATE INDEX api_keys_of_org ON api_keys (org_id, id);

CREATE TABLE event_tickets (
    ticket_hash BLOB    NOT NULL PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES agent_harness_sessions (session_key) ON DELETE CASCADE,
    key_id      TEXT    NOT NULL,
    expires_at  INTEGER NOT NULL
);

CREATE TABLE replicas (
    id         TEXT    NOT NULL PRIMARY KEY,
    started_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
