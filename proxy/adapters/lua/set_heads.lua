-- Put a proxy's heads on a replica in the place of those it published before: SharedLedger.set_heads.
--
-- KEYS   as account.lua
-- ARGV   1 now, 2 lease, 3 channel, 4 replica, 5 proxy; then for each head: field, rank (4) and ready (steps) as packed doubles, row
-- Returns  how many were taken: none of a proxy that is not registered, or where one is of another grid.

local proxy = ARGV[5]
local _, _, registered = begin(proxy)
local a = load_account()
if not a or not registered then return 0 end
for i = 6, #ARGV, 3 do
  if not shaped(a, ARGV[i + 2]) then return 0 end
end
local all, old, kept = redis.call('HGETALL', HEADS), {}, {}
for i = 1, #all, 2 do
  local h = head_of(all[i], all[i + 1])
  if h.proxy == proxy then old[h.field] = h end
end
for i = 6, #ARGV, 3 do
  local field = ARGV[i]
  local h, was = {field = field, stamp = NOW, offered = -huge, passed = -huge}, old[field]
  if was and alive(was) and (was.passed == -huge or NOW < was.passed + RENEW_S) then h.offered, h.passed = was.offered, was.passed end
  h[1], h.virtual, h[3], h.tenant, h.ready = struct.unpack('<ddddd', ARGV[i + 1])
  h.sequences = select(2, struct.unpack('<dd', ARGV[i + 2], 9))
  save_head(h)
  redis.call('HSET', HEADROWS, field, ARGV[i + 2])
  kept[field] = true
end
for field in pairs(old) do
  if not kept[field] then drop_head(field) end
end
return (#ARGV - 5) / 3
