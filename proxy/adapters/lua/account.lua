-- The account of one replica: core/shared_sum.py in Lua, word for word where it can be. Goes before every script that touches a replica.
--
-- KEYS   1 pool      hash: generation, recovering_until, expected, epoch; "p|PROXY" -> epoch of its registration
--        2 state     hash of the replica: record (JSON), number, holder, held_until, facts, ends, total
--        3 rows      hash: "m|PROXY" -> epoch, stamp, upto, numbers of its grants; "r|PROXY" -> row; "gN|PROXY" -> grant N
--        4 heads     hash: "LEN|PROXY ID" -> rank (3), stamp, offered, passed, ready, sequences, tenant
--        5 headrows  hash: the same fields -> row
-- ARGV   1 now       "" : the time is that of Redis. A test gives seconds here, nobody else does
--        2 lease     seconds that a proxy may be silent
--
-- Numbers are packed doubles, little-endian. A row is its anchor (steps of the record), then 6 figures and 4 curves of G blocks each.
-- facts: z, sigma, bias, usable (blocks), sequences_max (infinite: none), steps, steps per second, published (s).
-- total: anchor (steps), rebuilt, expires (s), proxies that have rewritten; then the row without its anchor. Times are seconds of TIME.
-- Nothing here unpacks more values at once than one row has, and every script checks before it writes.
--
-- What no proxy has written is an error here, never a number to go by: whoever meets it keeps to its own share, and mend.lua takes it out.

local POOL, STATE, ROWS, HEADS, HEADROWS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LEASE = tonumber(ARGV[2])
local NOW = tonumber(ARGV[1])
if not NOW then
  local time = redis.call('TIME')
  NOW = tonumber(time[1]) + tonumber(time[2]) / 1e6
end
local ANCHOR_STEPS, REBUILD_S, RECOVERY_S_MAX, SLACK, LOAD_FIELDS = 16, 2, 1.25, 1e-6, 6
local sqrt, abs, huge = math.sqrt, math.abs, math.huge
local BLOCKS_MAX, STEPS_MAX, NUMBER_MAX, DAY_MS = 1e12, 1e15, 1e15, 86400000 -- beyond all that a proxy tells
local BELOW, POINTS_MAX, GRANTS_MAX = -1, 512, 65536 -- rounding stays above the first

local function stamp_ms() return math.floor(NOW * 1000) end

local function damaged(what) error('what stands in ' .. what .. ' was not written by a proxy') end

local function within(x, least, most) return x ~= nil and x >= least and x <= most end -- false for what is no number

-- A number that rises with the store's clock, one after ``last``. What is a day ahead of it was not made from it.
local function next_number(last)
  last = tonumber(last) or 0
  if not within(last, 0, stamp_ms() + DAY_MS) then last = 0 end
  return math.max(last + 1, stamp_ms())
end

-- Begin a generation where there is none. Returns recovering_until, expected and the epoch of the proxy's registration (or false).
local function begin(proxy)
  local got = redis.call('HMGET', POOL, 'generation', 'recovering_until', 'expected', 'p|' .. proxy)
  if got[1] then
    local until_s, expected = tonumber(got[2]), tonumber(got[3])
    if not (within(until_s, 0, NOW + RECOVERY_S_MAX) and within(expected, 0, BLOCKS_MAX)) then damaged(POOL) end
    return until_s, expected, got[4]
  end
  local until_s = NOW + math.min(LEASE, RECOVERY_S_MAX)
  redis.call('HSET', POOL, 'generation', string.format('%.0f', stamp_ms()),
    'recovering_until', string.format('%.17g', until_s), 'expected', '0')
  return until_s, 0, got[4]
end

local function zeros(length)
  local row = {}
  for i = 1, length do row[i] = 0 end
  return row
end

-- An account's total is unpacked when somebody reads it: a rewrite by who has nothing there does not.
local UNREAD = {__index = function(a, key)
  if key ~= 'total' or not a.packed_total then return nil end
  a.total = {struct.unpack(a.format, a.packed_total)}
  return a.total
end}

-- Facts as numbers; false where a proxy cannot have told them.
local function read_facts(a, facts)
  if #facts ~= 64 then return false end
  a.z, a.sigma, a.bias, a.usable, a.seats, a.steps, a.rate, a.published = struct.unpack('<dddddddd', facts)
  return within(a.z, -100, 100) and within(a.sigma, 0, BLOCKS_MAX) and within(a.bias, -BLOCKS_MAX, BLOCKS_MAX) and within(a.usable, 0, BLOCKS_MAX)
    and within(a.seats, 0, huge) and within(a.steps, -STEPS_MAX, STEPS_MAX) and within(a.rate, 0, STEPS_MAX) and within(a.published, 0, STEPS_MAX)
end

-- The replica's account; nil where it has no record.
local function load_account()
  local got = redis.call('HMGET', STATE, 'facts', 'ends', 'total', 'number')
  if not got[1] then return nil end
  local a = {spots = {}, packed_ends = got[2], points = got[2] and #got[2] / 8 or 0, number = got[4]}
  if not (within(tonumber(got[4]), 0, NUMBER_MAX) and read_facts(a, got[1]) and a.points % 1 == 0 and within(a.points, 1, POINTS_MAX)) then
    damaged(STATE)
  end
  a.length = LOAD_FIELDS + 4 * a.points
  a.format = '<' .. string.rep('d', a.length)
  if got[3] and #got[3] == 8 * (a.length + 4) then
    a.anchor, a.rebuilt, a.expires, a.rewritten = struct.unpack('<dddd', got[3])
    a.packed_total = string.sub(got[3], 33) -- as it is kept; ``total`` is what holds once it has been read
    setmetatable(a, UNREAD)
  else
    a.anchor, a.rebuilt, a.expires, a.rewritten, a.total = 0, -huge, huge, 0, zeros(a.length)
  end
  return a
end

local function ends_of(a)
  if not a.ends then a.ends = {struct.unpack('<' .. string.rep('d', a.points), a.packed_ends)} end
  return a.ends
end

local function shaped(a, packed) return #packed == 8 * (a.length + 1) end

local function pack_row(a, row) return struct.pack(a.format, unpack(row, 1, a.length)) end

local function save_total(a)
  redis.call('HSET', STATE, 'total', struct.pack('<dddd', a.anchor, a.rebuilt, a.expires, a.rewritten) .. pack_row(a, a.total))
end

-- Where the grid's intervals lie so many steps later: in which one each begins, and in which it closes. Kept: steps are whole, rows many.
local function spots(a, steps)
  local known = a.spots[steps]
  if known then return known[1], known[2] end
  local ends, points, i, k = ends_of(a), a.points, 1, 1
  local begins, closes = {}, {}
  for j = 1, points do
    local from, to = (j > 1 and ends[j - 1] or 0) + steps, ends[j] + steps
    while i < points and ends[i] <= from do i = i + 1 end
    while k < points and ends[k] < to do k = k + 1 end
    begins[j], closes[j] = LOAD_FIELDS + i, LOAD_FIELDS + k
  end
  a.spots[steps] = {begins, closes}
  return begins, closes
end

-- A row as it reads so many steps after its anchor: the higher of the intervals that each lies across, level before and after them.
local function read_at(a, row, steps)
  local begins, closes = spots(a, steps)
  local points, read, n = a.points, {}, LOAD_FIELDS
  for i = 1, LOAD_FIELDS do read[i] = row[i] end
  for from = 0, 3 * points, points do
    for j = 1, points do
      local here, there = row[from + begins[j]], row[from + closes[j]]
      n = n + 1
      read[n] = here > there and here or there
    end
  end
  return read
end

-- Whole steps by which a packed row is older than the total.
local function late_of(a, packed) return math.floor(a.anchor - struct.unpack('<d', packed)) end

-- A packed row as it counts in the total.
local function counted(a, packed)
  local row, late = {struct.unpack(a.format, packed, 9)}, late_of(a, packed)
  if late > 0 then return read_at(a, row, late) end
  return row
end

-- Add a packed row as it counts: ``counted`` without a table of its own, for the many rows of a rebuild.
local function add(a, sum, packed)
  local row, late = {struct.unpack(a.format, packed, 9)}, late_of(a, packed)
  if late <= 0 then
    for i = 1, a.length do sum[i] = sum[i] + row[i] end
    return
  end
  local begins, closes = spots(a, late)
  local points, n = a.points, LOAD_FIELDS
  for i = 1, LOAD_FIELDS do sum[i] = sum[i] + row[i] end
  for from = 0, 3 * points, points do
    for j = 1, points do
      local here, there = row[from + begins[j]], row[from + closes[j]]
      n = n + 1
      sum[n] = sum[n] + (here > there and here or there)
    end
  end
end

local function steps_now(a)
  local age = NOW - a.published
  if age < 0 then age = 0 end
  return a.steps + a.rate * age
end

-- Give up a proxy that let something expire, unless it has registered anew since.
local function fence(proxy, epoch)
  if redis.call('HGET', POOL, 'p|' .. proxy) == string.format('%.0f', epoch) then redis.call('HDEL', POOL, 'p|' .. proxy) end
end

local function grant_field(proxy, number) return 'g' .. string.format('%.0f', number) .. '|' .. proxy end

-- Numbers of an entry's grants, in the order in which they were granted.
local function numbers_of(entry)
  local numbers = {}
  for at = 1, #entry.numbers, 8 do numbers[#numbers + 1] = struct.unpack('<d', entry.numbers, at) end
  return numbers
end

-- A proxy's entry from its pack.
local function read_entry(packed)
  local size = #packed
  if size < 24 or size % 8 ~= 0 or size > 8 * GRANTS_MAX then damaged(ROWS) end
  local epoch, stamp, upto = struct.unpack('<ddd', packed)
  if not (within(epoch, 0, NUMBER_MAX) and within(upto, -1, NUMBER_MAX)) then damaged(ROWS) end
  return {epoch = epoch, stamp = stamp, upto = upto, numbers = string.sub(packed, 25)}
end

-- By field of ``all`` that is not of an entry, whose it is; who let its lease pass, and when the first of the others will. A stamp of the
-- future is of no proxy either: the store gives them.
local function owners_of(a, all)
  local owners, gone, oldest = {}, {}, NOW
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'm|' then
      local proxy, entry = string.sub(all[i], 3), read_entry(all[i + 1])
      owners['r|' .. proxy] = proxy
      local numbers = numbers_of(entry)
      for n = 1, #numbers do owners[grant_field(proxy, numbers[n])] = proxy end
      if not (abs(NOW - entry.stamp) <= LEASE) then
        gone[proxy] = entry.epoch
      else
        if entry.stamp < oldest then oldest = entry.stamp end
        if entry.upto >= 0 then a.rewritten = a.rewritten + 1 end
      end
    end
  end
  return owners, gone, oldest
end

-- Make the total anew where it is time: A moves to now, proxies whose lease has passed are dropped, and rows of nobody.
-- Returns whether it was.
local function rebuild_if_due(a)
  local steps = steps_now(a)
  if steps < a.anchor + ANCHOR_STEPS and NOW < a.rebuilt + REBUILD_S and NOW >= a.rebuilt and NOW <= a.expires then return false end
  local all = redis.call('HGETALL', ROWS)
  a.anchor, a.rebuilt, a.rewritten, a.total = steps, NOW, 0, zeros(a.length)
  local owners, gone, oldest = owners_of(a, all)
  local blobs = {}
  for i = 1, #all, 2 do
    local field = all[i]
    local entry = string.sub(field, 1, 2) == 'm|'
    local proxy = entry and string.sub(field, 3) or owners[field]
    if not proxy or gone[proxy] then
      blobs[#blobs + 1] = field
      if proxy and not entry then fence(proxy, gone[proxy]) end
    elseif not entry then
      add(a, a.total, all[i + 1])
    end
  end
  for i = 1, a.length do
    if not within(a.total[i], BELOW, BLOCKS_MAX * BLOCKS_MAX) then damaged(ROWS) end
  end
  a.expires = oldest + LEASE
  for i = 1, #blobs do redis.call('HDEL', ROWS, blobs[i]) end
  save_total(a)
  return true
end

-- A proxy's entry; nil where it has none.
local function entry_of(proxy)
  local packed = redis.call('HGET', ROWS, 'm|' .. proxy)
  return packed and read_entry(packed) or nil
end

local function save_entry(proxy, epoch, upto, numbers)
  redis.call('HSET', ROWS, 'm|' .. proxy, struct.pack('<ddd', tonumber(epoch), NOW, upto) .. numbers)
end

-- The sum of a packed row ("" or false: none) and of a proxy's grants after ``upto``, as they count; nil where there is nothing.
local function sum_of(a, packed, proxy, numbers, upto)
  local sum
  if packed and packed ~= '' then sum = counted(a, packed) end
  for i = 1, #numbers do
    local grant = numbers[i] > upto and redis.call('HGET', ROWS, grant_field(proxy, numbers[i]))
    if grant and sum then add(a, sum, grant) elseif grant then sum = counted(a, grant) end
  end
  return sum
end

-- What a proxy has in the total; nil where it has nothing.
local function own_of(a, proxy, entry)
  return entry and sum_of(a, redis.call('HGET', ROWS, 'r|' .. proxy), proxy, numbers_of(entry), -1)
end

-- The total without one part of it, which is used up.
local function total_less(a, own)
  if not own then return a.total end
  local total = a.total
  for i = 1, a.length do own[i] = total[i] - own[i] end
  return own
end

-- Nothing is left of rounding where there is no lease.
local function settle(a)
  if a.total[1] < 0.5 then a.total = zeros(a.length) end
end

local function is_empty(a) return a.total[1] < 0.5 and a.bias < 1 end

local function seats_free(a, sequences) return a.total[2] + sequences <= a.seats + SLACK end

-- The highest Q of up to three rows' sum from interval ``first`` on, bias left out.
local function peak(a, one, two, three, first, sigma)
  local n, z, most = a.points, a.z, -huge
  local mean, variance, ceiling, common = LOAD_FIELDS, LOAD_FIELDS + n, LOAD_FIELDS + 2 * n, LOAD_FIELDS + 3 * n
  for j = first, n do
    local m, v, c, k = one[mean + j], one[variance + j], one[ceiling + j], one[common + j]
    if two then m, v, c, k = m + two[mean + j], v + two[variance + j], c + two[ceiling + j], k + two[common + j] end
    if three then m, v, c, k = m + three[mean + j], v + three[variance + j], c + three[ceiling + j], k + three[common + j] end
    local q = m + z * sqrt(abs(k * k + v + sigma * sigma))
    if c + sigma < q then q = c + sigma end
    if not (q >= BELOW and q <= BLOCKS_MAX) then damaged(ROWS) end
    if q > most then most = q end
  end
  return most
end

local function free_blocks(a, newcomer) return a.usable - (peak(a, a.total, newcomer, nil, 1, a.sigma) + a.bias) end

local function fits(a, newcomer) return free_blocks(a, newcomer) >= -SLACK end

-- Whether a newcomer leaves a head, which starts at step ``ready``, its room from then on.
local function fits_beside(a, newcomer, head, ready)
  local ends, ahead, first = ends_of(a), ready - a.anchor, 1
  if ahead < 0 then ahead = 0 end
  if ahead > ends[a.points] then return true end
  while first < a.points and ends[first] <= ahead do first = first + 1 end
  return peak(a, a.total, newcomer, read_at(a, head, -ahead), first, a.sigma) + a.bias <= a.usable + SLACK
end
