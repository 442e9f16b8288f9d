"""The Lua side: each step of a window's life in Redis is one atomic script.

Payloads pass through as opaque bytes. Names (all under ``dibs:``):

======================  =====================================================================================
``p:<partition>``       hash: ``seq`` (last number given), ``epoch``, ``open`` (intents), ``window`` (closed one's id)
``open:<partition>``    list of entries ``<received_seq> <intents> <submission>``, in sequence
``win:<partition>``     the closed window's entries, until it is finished
``lease:<partition>``   the processing worker's token, with a TTL
``wake:<partition>``    when a job was queued for the partition and not yet taken, in milliseconds
``dirty``               sorted set of partitions with work, by the time of their oldest unprocessed append
``proposals``           hash: open submission -> partition; what makes an append idempotent
``agents``              hash: agent -> open intents
``rate:<agent>``        hash: token bucket
``res:<key digest>``    reservation: window id and proposal id, with a TTL
``reply:<web>``         list of reply messages of one web process
``jobs``                how many jobs were queued, for their ids
``instance``            a token that is gone once this Redis has lost its data
======================  =====================================================================================

Contract, sections 1, 1.1 and 1.3.
"""

from __future__ import annotations

from typing import Final

QUEUE: Final = "dibs"
JOB_NAME: Final = "worker.jobs.process_window"
"""The one job there is, named by its path: the web side never imports the worker."""

JOB_SECONDS: Final = 600
"""How long a job's hash may lie around when its worker died with it; the sweeper queues a new one long before."""

REPLY_SECONDS: Final = 60
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""A window ends where its entries reach this size, whatever their number; one that is larger goes alone."""

WAKE_LOST_MS: Final = 1000
"""Age at which a queued job that no worker has taken may be lost."""

_WAKE: Final = f"""
local function wake(partition, now)
  -- A live lease means that its holder looks at the open list once more before it lets go: no job is needed.
  if redis.call('EXISTS', 'dibs:lease:' .. partition) == 1 then return 0 end
  if not redis.call('SET', 'dibs:wake:' .. partition, now, 'NX') then return 0 end
  local id = 'dibs-' .. redis.call('GET', 'dibs:instance') .. '-' .. redis.call('INCR', 'dibs:jobs')
  -- RQ wants dates in a job and nothing here reads them.
  redis.call('HSET', 'rq:job:' .. id,
    'data', '["{JOB_NAME}",null,["' .. partition .. '"],{{}}]',
    'created_at', '2026-01-01T00:00:00.000000Z', 'enqueued_at', '2026-01-01T00:00:00.000000Z',
    'origin', '{QUEUE}', 'status', 'queued', 'description', partition,
    'timeout', '{JOB_SECONDS}', 'result_ttl', '0', 'failure_ttl', '{JOB_SECONDS}')
  redis.call('EXPIRE', 'rq:job:' .. id, {JOB_SECONDS})
  redis.call('SADD', 'rq:queues', 'rq:queue:{QUEUE}')
  redis.call('RPUSH', 'rq:queue:{QUEUE}', id)
  return 1
end
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function push(key, entries)
  for first = 1, #entries, 1000 do
    redis.call('RPUSH', key, unpack(entries, first, math.min(first + 999, #entries)))
  end
end
"""

APPEND: Final = (
    _WAKE
    + """
-- ARGV: fresh instance token, open limit of a partition, tokens per second, burst, open limit of an agent, then for
-- each submission: partition, id, agent, intents, again (1: appended before, limits do not apply), bytes.
-- Returns the instance token and, for each submission, {verdict, number}: 0 appended (received_seq), 1 already open,
-- 2 partition full, 3 over the rate (milliseconds to wait), 4 too many open of this agent.
redis.call('SET', 'dibs:instance', ARGV[1], 'NX')
local now = now_ms()
local max_open, rate, burst, agent_max = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local answers = {}
for i = 6, #ARGV, 6 do
  local partition, id, agent = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local count, again, bytes = tonumber(ARGV[i + 3]), ARGV[i + 4] == '1', ARGV[i + 5]
  local state = 'dibs:p:' .. partition
  local verdict, number = 0, 0
  if redis.call('HEXISTS', 'dibs:proposals', id) == 1 then
    verdict = 1
  elseif not again then
    local open = tonumber(redis.call('HGET', state, 'open') or 0)
    local agent_open = tonumber(redis.call('HGET', 'dibs:agents', agent) or 0)
    if open + count > max_open then
      verdict = 2
    elseif agent_open + count > agent_max then
      verdict = 4
    else
      local bucket = redis.call('HMGET', 'dibs:rate:' .. agent, 'tokens', 'at')
      local tokens = tonumber(bucket[1] or burst)
      -- The clock may be set back: a bucket never loses tokens by that.
      tokens = math.min(burst, tokens + math.max(0, now - tonumber(bucket[2] or now)) * rate / 1000)
      local price = math.min(count, burst)
      if tokens < price then
        verdict, number = 3, math.ceil((price - tokens) * 1000 / rate)
      else
        redis.call('HSET', 'dibs:rate:' .. agent, 'tokens', tostring(tokens - price), 'at', now)
        redis.call('PEXPIRE', 'dibs:rate:' .. agent, math.ceil(burst * 1000 / rate) + 1000)
      end
    end
  end
  if verdict == 0 then
    number = redis.call('HINCRBY', state, 'seq', 1)
    redis.call('HINCRBY', state, 'open', count)
    redis.call('RPUSH', 'dibs:open:' .. partition, string.format('%.0f', number) .. ' ' .. count .. ' ' .. bytes)
    redis.call('HSET', 'dibs:proposals', id, partition)
    redis.call('HINCRBY', 'dibs:agents', agent, count)
    redis.call('ZADD', 'dibs:dirty', 'NX', now, partition)
    wake(partition, now)
  end
  answers[#answers + 1] = {verdict, number}
end
return {redis.call('GET', 'dibs:instance'), answers}
"""
)

TAKE: Final = """
-- ARGV: partition, token, lease in ms. Returns {0} while another holds it, else {1, epoch, last number given}.
if not redis.call('SET', 'dibs:lease:' .. ARGV[1], ARGV[2], 'NX', 'PX', ARGV[3]) then return {0, 0, 0} end
redis.call('DEL', 'dibs:wake:' .. ARGV[1])
local state = redis.call('HMGET', 'dibs:p:' .. ARGV[1], 'epoch', 'seq')
return {1, tonumber(state[1] or 0), tonumber(state[2] or 0)}
"""

RENEW: Final = """
-- ARGV: partition, token, lease in ms. Returns 1, or 0 when the lease is another's or has run out.
if redis.call('GET', 'dibs:lease:' .. ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('PEXPIRE', 'dibs:lease:' .. ARGV[1], ARGV[3])
"""

RENUMBER: Final = (
    _WAKE
    + """
-- ARGV: partition, epoch (already committed in SQL), last number committed in SQL. Gives every waiting entry a number
-- above both that and any given before. A closed window is opened again: SQL may know its id with other numbers. A
-- second run with the same epoch changes nothing.
local state, open, win = 'dibs:p:' .. ARGV[1], 'dibs:open:' .. ARGV[1], 'dibs:win:' .. ARGV[1]
if redis.call('HGET', state, 'epoch') == ARGV[2] then return 0 end
local seq = math.max(tonumber(redis.call('HGET', state, 'seq') or 0), tonumber(ARGV[3]))
local entries = redis.call('LRANGE', win, 0, -1)
for _, entry in ipairs(redis.call('LRANGE', open, 0, -1)) do entries[#entries + 1] = entry end
for i, entry in ipairs(entries) do
  local space = string.find(entry, ' ', 1, true)
  -- One that nobody here wrote stays as it is: its reader drops it.
  if space then
    seq = seq + 1
    entries[i] = string.format('%.0f', seq) .. string.sub(entry, space, -1)
  end
end
redis.call('DEL', win, open)
push(open, entries)
redis.call('HDEL', state, 'window')
redis.call('HSET', state, 'seq', string.format('%.0f', seq), 'epoch', ARGV[2])
return 1
"""
)

CLOSE: Final = (
    _WAKE
    + """
-- ARGV: partition, token, id for a new window, most intents, most bytes. Returns {window id, entries}: the window that
-- was closed and not finished (its worker died), or a new one; {'', {}} when nothing waits, {'lost', {}} without the
-- lease.
local partition = ARGV[1]
if redis.call('GET', 'dibs:lease:' .. partition) ~= ARGV[2] then return {'lost', {}} end
local state, open, win = 'dibs:p:' .. partition, 'dibs:open:' .. partition, 'dibs:win:' .. partition
local standing = redis.call('HGET', state, 'window')
if standing then return {standing, redis.call('LRANGE', win, 0, -1)} end
local most = tonumber(ARGV[4])
local entries, intents, bytes, full = {}, 0, 0, false
while not full do
  -- A few at a time: entries may be large, and what is read beyond the window is read in vain.
  local some = redis.call('LRANGE', open, #entries, #entries + 15)
  for _, entry in ipairs(some) do
    intents = intents + tonumber(string.match(entry, '^%d+ (%d+) ') or 1)
    bytes = bytes + #entry
    full = #entries > 0 and (intents > most or bytes > tonumber(ARGV[5]))
    if full then break end
    entries[#entries + 1] = entry
  end
  if #some < 16 then break end
end
if #entries == 0 then return {'', {}} end
push(win, entries)
redis.call('LTRIM', open, #entries, -1)
redis.call('HSET', state, 'window', ARGV[3])
return {ARGV[3], entries}
"""
)

RESERVE: Final = """
-- ARGV: TTL in ms, then key digest and token in turns. Returns 1 (held by this token) or 0 for each key.
local held = {}
for i = 2, #ARGV, 2 do
  local key = 'dibs:res:' .. ARGV[i]
  if redis.call('SET', key, ARGV[i + 1], 'NX', 'PX', ARGV[1]) then
    held[#held + 1] = 1
  elseif redis.call('GET', key) == ARGV[i + 1] then
    redis.call('PEXPIRE', key, ARGV[1])
    held[#held + 1] = 1
  else
    held[#held + 1] = 0
  end
end
return held
"""

FINISH: Final = """
-- ARGV: partition, window id, number of reservations, of submissions, of replies, reply TTL in s; then digest and
-- token; id, agent and intents; web process and message. Run after COMMIT, by whoever committed or found it
-- committed: each removal asks for what it removes, so that a second run, or a run beside a successor's, changes no
-- more.
local partition, at = ARGV[1], 7
for _ = 1, tonumber(ARGV[3]) do
  if redis.call('GET', 'dibs:res:' .. ARGV[at]) == ARGV[at + 1] then redis.call('DEL', 'dibs:res:' .. ARGV[at]) end
  at = at + 2
end
local state = 'dibs:p:' .. partition
if redis.call('HGET', state, 'window') == ARGV[2] then
  redis.call('HDEL', state, 'window')
  redis.call('DEL', 'dibs:win:' .. partition)
  for _ = 1, tonumber(ARGV[4]) do
    if redis.call('HDEL', 'dibs:proposals', ARGV[at]) == 1 then
      redis.call('HINCRBY', state, 'open', -ARGV[at + 2])
      if redis.call('HINCRBY', 'dibs:agents', ARGV[at + 1], -ARGV[at + 2]) <= 0 then
        redis.call('HDEL', 'dibs:agents', ARGV[at + 1])
      end
    end
    at = at + 3
  end
else
  at = at + 3 * tonumber(ARGV[4])
end
for _ = 1, tonumber(ARGV[5]) do
  redis.call('RPUSH', 'dibs:reply:' .. ARGV[at], ARGV[at + 1])
  redis.call('EXPIRE', 'dibs:reply:' .. ARGV[at], ARGV[6])
  at = at + 2
end
return 1
"""

RELEASE: Final = (
    _WAKE
    + """
-- ARGV: partition, token, 1 to queue a job when work is left, fresh instance token. The look at the open list and the
-- end of the lease are one step: an append before it is seen here, one after it finds no lease and queues a job itself.
local partition = ARGV[1]
if redis.call('GET', 'dibs:lease:' .. partition) ~= ARGV[2] then return 0 end
redis.call('DEL', 'dibs:lease:' .. partition)
local closed = redis.call('HEXISTS', 'dibs:p:' .. partition, 'window')
if redis.call('LLEN', 'dibs:open:' .. partition) == 0 and closed == 0 then
  redis.call('ZREM', 'dibs:dirty', partition)
elseif ARGV[3] == '1' then
  redis.call('SET', 'dibs:instance', ARGV[4], 'NX')
  wake(partition, now_ms())
end
return 1
"""
)

SWEEP: Final = (
    _WAKE
    + f"""
-- ARGV: most partitions, fresh instance token. Queues a job for every partition that has work, no lease and no job that
-- could still be on its way. A job too many finds the lease taken or nothing to do. Returns how many were queued.
redis.call('SET', 'dibs:instance', ARGV[2], 'NX')
local now, queued = now_ms(), 0
local dirty = redis.call('ZRANGE', 'dibs:dirty', 0, tonumber(ARGV[1]) - 1)
local behind = redis.call('LLEN', 'rq:queue:{QUEUE}') >= #dirty
for _, partition in ipairs(dirty) do
  local key = 'dibs:wake:' .. partition
  local since = tonumber(redis.call('GET', key) or 0)
  -- As many jobs wait as there is work: the workers are behind, and more jobs would only lengthen the queue.
  if since > 0 and math.abs(now - since) >= {WAKE_LOST_MS} and not behind then redis.call('DEL', key) end
  queued = queued + wake(partition, now)
end
return queued
"""
)

NUDGE: Final = (
    _WAKE
    + f"""
-- ARGV: fresh instance token, then partitions in which something is due though nobody has appended anything.
-- Returns how many jobs were queued.
redis.call('SET', 'dibs:instance', ARGV[1], 'NX')
local now, queued = now_ms(), 0
local idle = redis.call('LLEN', 'rq:queue:{QUEUE}') == 0
for i = 2, #ARGV do
  local key = 'dibs:wake:' .. ARGV[i]
  local since = tonumber(redis.call('GET', key) or 0)
  -- Nothing is queued and no one has taken it: that job died with its worker.
  if since > 0 and math.abs(now - since) >= {WAKE_LOST_MS} and idle then redis.call('DEL', key) end
  queued = queued + wake(ARGV[i], now)
end
return queued
"""
)
