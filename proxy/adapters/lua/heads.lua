-- The heads that wait for one replica: core/shared_heads.py in Lua. Goes after account.lua, before the scripts that ask who goes first.
--
-- ARGV   3 channel   prefix of the channels on which a proxy hears that a head of its was offered room; PROXY is put behind it and the
--                    message is the replica's name (ARGV 4). Where the user may not PUBLISH the offer is made all the same.

local OFFER_S, RENEW_S, HEADS_LOOKED_AT = 0.05, 1, 8

local function head_of(field, packed)
  local bar = string.find(field, '|', 1, true)
  local length = tonumber(string.sub(field, 1, bar - 1))
  local h = {field = field, proxy = string.sub(field, bar + 1, bar + length), id = string.sub(field, bar + length + 1)}
  h[1], h.virtual, h[3], h.stamp, h.offered, h.passed, h.ready, h.sequences, h.tenant = struct.unpack('<ddddddddd', packed)
  return h
end

local function save_head(h)
  redis.call('HSET', HEADS, h.field,
    struct.pack('<ddddddddd', h[1], h.virtual, h[3], h.stamp, h.offered, h.passed, h.ready, h.sequences, h.tenant))
end

local function drop_head(field)
  redis.call('HDEL', HEADS, field)
  redis.call('HDEL', HEADROWS, field)
end

-- Whether rank a is before rank b: -1; after it: 1; the same: 0.
local function compare(a, b)
  for i = 1, 3 do
    if a[i] < b[i] then return -1 elseif a[i] > b[i] then return 1 end
  end
  return 0
end

local function before(a, b)
  local order = compare(a, b)
  if order ~= 0 then return order < 0 end
  if a.proxy ~= b.proxy then return a.proxy < b.proxy end
  return a.id < b.id
end

local function alive(h) return NOW - h.stamp <= LEASE end

-- Bring every tenant of these heads, and of a newcomer if there is one, to one virtual time, the least that any tells of it.
local function level(heads, newcomer)
  local least = {}
  local function hear(r)
    r.key = struct.pack('<dd', r[1] + 0, r.tenant) -- + 0: without the sign of a zero
    if not least[r.key] or r.virtual < least[r.key] then least[r.key] = r.virtual end
  end
  for i = 1, #heads do hear(heads[i]) end
  if newcomer then
    hear(newcomer)
    newcomer[2] = least[newcomer.key]
  end
  for i = 1, #heads do heads[i][2] = least[heads[i].key] end
end

-- A rank as it is sent, its virtual time still its proxy's own.
local function rank_of(packed)
  local r = {}
  r[1], r.virtual, r[3], r.tenant = struct.unpack('<dddd', packed)
  return r
end

-- Every head that may hold somebody up, the best first, to be compared with a newcomer's rank if there is one; and all that are not dead, who
-- are swept out.
local function live_heads(newcomer)
  local packed, all, live = redis.call('HGETALL', HEADS), {}, {}
  for i = 1, #packed, 2 do
    local h = head_of(packed[i], packed[i + 1])
    if alive(h) then all[#all + 1] = h else drop_head(h.field) end
    if alive(h) and h.passed == -huge then live[#live + 1] = h end
  end
  level(all, newcomer)
  table.sort(live, before)
  return live, all
end

local function head_fits(a, h, packed)
  if is_empty(a) then return true end
  return seats_free(a, h.sequences) and fits(a, counted(a, packed))
end

-- Whether a head let its offer go by; it is marked so.
local function passed_over(h)
  if h.offered + OFFER_S >= NOW or h.offered == -huge then return false end
  h.passed = NOW
  save_head(h)
  return true
end

-- Offer a head the room. Returns its proxy, or nil where it was offered before.
local function offer(h)
  if h.offered ~= -huge then return nil end
  h.offered = NOW
  save_head(h)
  redis.pcall('PUBLISH', ARGV[3] .. h.proxy, ARGV[4])
  return h.proxy
end
