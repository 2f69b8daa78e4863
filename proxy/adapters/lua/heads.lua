-- The heads that wait for one replica: core/shared_heads.py in Lua. Goes after account.lua, before the scripts that ask who goes first.
--
-- ARGV   3 channel   prefix of the channels on which a proxy hears that a head of its was offered room; PROXY is put behind it and the
--                    message is the replica's name (ARGV 4). Where the user may not PUBLISH the offer is made all the same.

local OFFER_S, RENEW_S, HEADS_LOOKED_AT = 0.05, 1, 8

local function head_of(field, packed)
  local bar = string.find(field, '|', 1, true) or 0
  local length = tonumber(string.sub(field, 1, bar - 1))
  if not (within(length, 0, #field - bar) and #packed == 72) then damaged(HEADS) end
  local h = {field = field, proxy = string.sub(field, bar + 1, bar + length), id = string.sub(field, bar + length + 1)}
  h[1], h.virtual, h[3], h.stamp, h.offered, h.passed, h.ready, h.sequences, h.tenant = struct.unpack('<ddddddddd', packed)
  for _, x in pairs({h[1], h.virtual, h[3], h.ready, h.sequences, h.tenant}) do
    if x ~= x then damaged(HEADS) end -- it has no place in any order
  end
  if not (h.offered <= NOW) then h.offered = -huge end
  if not (h.passed <= NOW) then h.passed = -huge end
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

local function alive(h) return abs(NOW - h.stamp) <= LEASE end

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

-- Of these heads every one that may hold somebody up, the best first, to be compared with a newcomer's rank if there is one.
local function in_order(all, newcomer)
  local live = {}
  for i = 1, #all do
    if all[i].passed == -huge then live[#live + 1] = all[i] end
  end
  level(all, newcomer)
  table.sort(live, before)
  return live
end

-- The same of all that wait for the replica, and all that are not dead, who are swept out.
local function live_heads(newcomer)
  local packed, all = redis.call('HGETALL', HEADS), {}
  for i = 1, #packed, 2 do
    local h = head_of(packed[i], packed[i + 1])
    if alive(h) then all[#all + 1] = h else drop_head(h.field) end
  end
  return in_order(all, newcomer), all
end

local function head_fits(a, h, packed)
  if is_empty(a) then return true end
  return seats_free(a, h.sequences) and fits(a, counted(a, packed))
end

-- Whether a newcomer, as it counts in the total, would keep a head that does not fit now from starting when its proxy has promised.
local function delays(a, newcomer, h, packed)
  if not seats_free(a, h.sequences + newcomer[2]) then return true end
  return not fits_beside(a, newcomer, {struct.unpack(a.format, packed, 9)}, h.ready)
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

-- Whether a head that fits would keep one of another proxy from its room among better ones that do not fit.
local function held_back(a, h, row, waiting)
  local newcomer
  for i = 1, #waiting do
    if waiting[i].proxy ~= h.proxy then
      newcomer = newcomer or counted(a, row)
      if delays(a, newcomer, waiting[i], waiting[i].row) then return true end
    end
  end
  return false
end

-- Offer what is free to the best head that would be granted its place now. Returns its proxy; nil where there is none or it was offered before.
local function offer_rest(a, heads)
  local waiting = {}
  for i = 1, math.min(#heads, HEADS_LOOKED_AT) do
    local h = heads[i]
    local row = redis.call('HGET', HEADROWS, h.field)
    if row and shaped(a, row) then
      if not head_fits(a, h, row) then
        h.row = row
        waiting[#waiting + 1] = h
      elseif not passed_over(h) and not held_back(a, h, row, waiting) then
        return offer(h)
      end
    end
  end
  return nil
end
