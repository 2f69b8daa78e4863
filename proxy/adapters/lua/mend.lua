-- Take out of one replica's keys, and of the pool's, what no proxy has written. Goes after account.lua; asked for where a script failed.
--
-- KEYS   as account.lua
-- ARGV   1 now, 2 lease
-- Returns  how many fields and keys went.
--
-- What went comes back with the next registration, record, rewrite or publication of heads. Of what is well-formed and untrue nothing is
-- known here: rows of nobody go with a lease, as those of a proxy that stopped.

local gone = 0

local function drop(key, field)
  redis.call('HDEL', key, field)
  gone = gone + 1
end

local function drop_key(key)
  redis.call('DEL', key)
  gone = gone + 1
end

-- A hash as field, value, field, value; nothing of a key that is none, which goes.
local function read(key)
  local all = redis.pcall('HGETALL', key)
  if not all.err then return all end
  if not string.find(all.err, 'WRONGTYPE', 1, true) then error(all.err) end -- not allowed to, say: then nothing is known of it
  drop_key(key)
  return {}
end

local function each(key, good)
  local all = read(key)
  for i = 1, #all, 2 do
    if not good(all[i], all[i + 1]) then drop(key, all[i]) end
  end
end

local function sound_row(packed, length)
  if #packed % 8 ~= 0 or #packed > 8 * (LOAD_FIELDS + 4 * POINTS_MAX + 1) or (length and #packed ~= 8 * (length + 1)) then return false end
  for at = 1, #packed, 8 do
    local x = struct.unpack('<d', packed, at)
    if at > 1 and not within(x, BELOW, BLOCKS_MAX * BLOCKS_MAX) or not within(x, -STEPS_MAX, BLOCKS_MAX * BLOCKS_MAX) then return false end
  end
  return true
end

local NAMES = {generation = true, recovering_until = true, expected = true, epoch = true}
each(POOL, function(field, value)
  return (NAMES[field] or string.sub(field, 1, 2) == 'p|') and within(tonumber(value), 0, NUMBER_MAX)
end)

local got = redis.call('HMGET', POOL, 'recovering_until', 'expected')
if not (within(tonumber(got[1]), 0, NOW + RECOVERY_S_MAX) and within(tonumber(got[2]), 0, BLOCKS_MAX)) then
  redis.call('HDEL', POOL, 'generation', 'recovering_until', 'expected') -- a new one begins with the next call
end

-- The record, with all that belongs to it; its total is made anew.
local function length_of(state)
  local a = {}
  if not (state.facts and read_facts(a, state.facts) and within(tonumber(state.number), 0, NUMBER_MAX)) then return nil end
  local ends, last = state.ends or '', 0
  if #ends % 8 ~= 0 or not within(#ends, 8, 8 * POINTS_MAX) then return nil end
  for at = 1, #ends, 8 do
    local x = struct.unpack('<d', ends, at)
    if not (x > last and x <= STEPS_MAX) then return nil end
    last = x
  end
  return LOAD_FIELDS + #ends / 2
end

local PARTS = {record = true, number = true, holder = true, held_until = true, facts = true, ends = true}
local state, all = {}, read(STATE)
for i = 1, #all, 2 do
  if PARTS[all[i]] then state[all[i]] = all[i + 1] else drop(STATE, all[i]) end
end
local length = length_of(state)
if not length and #all > 0 then drop_key(STATE) end

each(ROWS, function(field, packed)
  if string.sub(field, 1, 2) == 'm|' then return (pcall(read_entry, packed)) end
  return (string.sub(field, 1, 2) == 'r|' or string.find(field, '^g%d+|')) and sound_row(packed, length)
end)
local known = {}
each(HEADS, function(field, packed)
  known[field] = pcall(head_of, field, packed)
  return known[field]
end)
each(HEADROWS, function(field, packed) return known[field] and sound_row(packed, length) end)
return gone
